"""The file of hashed keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.auth import Keys
from paceline.gateway.errors import Rejected
from paceline.gateway.keyfile import new_key, read
from paceline.gateway.limits import Quota


def write(path: Path, *tenants: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"tenants": tenants}))
    return path


def test_several_keys_are_one_tenant_and_the_file_holds_none_of_them(tmp_path: Path) -> None:
    (one, first), (two, second), (three, third) = (new_key() for _ in range(3))
    file = write(
        tmp_path / "keys.json",
        {"name": "acme", "keys": [first, second], "requests_per_minute": 5},
        {"name": "other", "keys": [third]},
    )
    assert not any(key in file.read_text() for key in (one, two, three))
    keys = Keys([], read(file))
    acme, same, other = (keys.tenant({"Authorization": f"Bearer {key}"}) for key in (one, two, three))
    assert acme == same
    assert (acme.name, acme.quota) == ("acme", Quota(requests=5))
    assert (other.name, other.quota) == ("other", Quota())
    assert acme.salt != other.salt
    # The hash opens nothing.
    with pytest.raises(Rejected):
        keys.tenant({"Authorization": f"Bearer {first}"})


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ([{"name": "a", "keys": ["sk-plain"]}], "sha256: and 64 hex digits"),
        ([{"name": "a", "keys": []}], "sha256: and 64 hex digits"),
        ([{"name": "a", "keys": ["sha256:" + "0" * 64]}] * 2, "tenant 'a' is there twice"),
        (
            [{"name": n, "keys": ["sha256:" + "0" * 64]} for n in "ab"],
            "sha256:0{64} is there twice",
        ),
        ([{"name": "a", "keys": ["sha256:" + "0" * 64], "tokens_per_minute": 0}], "at least 1"),
        ([{"name": "a", "keys": [], "limit": 1}], "unknown field `limit`"),
        ([{"keys": []}], "missing required field `name`"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, tenants: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read(write(tmp_path / "keys.json", *tenants))
    assert str(tmp_path) in caught.value.message
    assert caught.value.param == "PACELINE_KEYS_FILE"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        read(tmp_path / "missing")

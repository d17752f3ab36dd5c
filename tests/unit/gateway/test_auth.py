"""API keys and tenants."""

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.auth import Keys, check_exposure, parse_keys
from paceline.gateway.errors import Rejected


def test_without_keys_everybody_is_the_default_tenant() -> None:
    keys = Keys([])
    assert keys.tenant(None) == keys.tenant("Bearer anything")
    assert keys.tenant(None).name == "default"


def test_each_key_is_a_tenant_of_its_own_and_does_not_name_itself() -> None:
    keys = Keys(parse_keys(" sk-one, sk-two ,,"))
    one, two = keys.tenant("Bearer sk-one"), keys.tenant("bearer  sk-two")
    assert one.name != two.name
    assert one.salt != two.salt
    assert "sk-one" not in one.name
    assert keys.tenant("Bearer sk-one") == one == Keys(["sk-one"]).tenant("Bearer sk-one")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-on",
        "Bearer sk-one!",
        "Basic sk-one",
        "sk-one",
        "Bearer \udcff",
    ],
)
def test_anything_else_is_refused(header: str | None) -> None:
    with pytest.raises(Rejected) as caught:
        Keys(["sk-one"]).tenant(header)
    assert (caught.value.problem.status, caught.value.problem.code) == (401, "invalid_api_key")


PUBLIC = ["0.0.0.0", "::", "192.168.1.5", "example.org", ""]


@pytest.mark.parametrize("host", PUBLIC)
def test_a_gateway_that_others_can_reach_needs_keys(host: str) -> None:
    with pytest.raises(InvalidRequest, match="set PACELINE_API_KEYS"):
        check_exposure(host, [], allowed=False)
    check_exposure(host, ["sk-one"], allowed=False)
    check_exposure(host, [], allowed=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_exposure(host, [], allowed=False)

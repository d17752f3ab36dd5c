"""API keys and tenants."""

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.auth import Keys, check_exposure, parse_keys
from paceline.gateway.errors import Rejected


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_without_keys_everybody_is_the_default_tenant() -> None:
    keys = Keys([])
    assert keys.tenant({}) == keys.tenant(bearer("anything"))
    assert keys.tenant({}).name == "default"


def test_each_key_is_a_tenant_of_its_own_and_does_not_name_itself() -> None:
    keys = Keys(parse_keys(" sk-one, sk-two ,,"))
    one, two = keys.tenant(bearer("sk-one")), keys.tenant({"Authorization": "bearer  sk-two"})
    assert one.name != two.name
    assert one.salt != two.salt
    assert "sk-one" not in one.name
    assert keys.tenant(bearer("sk-one")) == one == Keys(["sk-one"]).tenant(bearer("sk-one"))


def test_anthropics_clients_send_their_key_in_a_header_of_its_own() -> None:
    keys = Keys(["sk-one", "sk-two"])
    assert keys.tenant({"x-api-key": "sk-two"}) == keys.tenant(bearer("sk-two"))
    with pytest.raises(Rejected):
        keys.tenant({**bearer("sk-three"), "x-api-key": "sk-two"})


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
    headers = {} if header is None else {"Authorization": header}
    with pytest.raises(Rejected) as caught:
        Keys(["sk-one"]).tenant(headers)
    assert (caught.value.problem.status, caught.value.problem.code) == (401, "invalid_api_key")


PUBLIC = ["0.0.0.0", "::", "192.168.1.5", "example.org", ""]


@pytest.mark.parametrize("host", PUBLIC)
def test_a_gateway_that_others_can_reach_needs_keys(host: str) -> None:
    with pytest.raises(InvalidRequest, match="PACELINE_API_KEYS"):
        check_exposure(host, Keys([]), allowed=False)
    check_exposure(host, Keys(["sk-one"]), allowed=False)
    check_exposure(host, Keys([]), allowed=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_exposure(host, Keys([]), allowed=False)

"""Who may ask, and which tenant they are."""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import tenant_salt
from paceline.gateway.errors import Rejected, unauthorized


@dataclass(frozen=True, slots=True)
class Tenant:
    """Requests of one tenant share cached pages; `salt` keeps those of others out of reach."""

    name: str
    salt: bytes


_DEFAULT = Tenant("default", tenant_salt("default"))


class Keys:
    """The API keys of a gateway; without any, everybody is the tenant "default"."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._tenants = [(key.encode(), _tenant_of(key.encode())) for key in keys]

    def tenant(self, authorization: str | None) -> Tenant:
        """The tenant of an Authorization header. Raises `Rejected` with 401."""
        if not self._tenants:
            return _DEFAULT
        scheme, _, token = (authorization or "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        # Every key is compared, and each in constant time, so that time tells nothing about them.
        matches = [tenant for key, tenant in self._tenants if hmac.compare_digest(key, given)]
        if scheme.lower() != "bearer" or not matches:
            raise Rejected(unauthorized())
        return matches[0]


def parse_keys(text: str | None) -> list[str]:
    """Comma separated keys."""
    return [key.strip() for key in (text or "").split(",") if key.strip()]


def check_exposure(host: str, keys: Sequence[str], *, allowed: bool) -> None:
    """Raises `InvalidRequest` when a gateway without keys would be reachable from other machines, unless that is
    `allowed` by name: inside a container, whose own network decides who reaches it."""
    if not keys and not allowed and not _is_loopback(host):
        raise InvalidRequest(
            f"PACELINE_HOST={host} is reachable from other machines: set PACELINE_API_KEYS, or bind 127.0.0.1",
            param="PACELINE_HOST",
        )


def _tenant_of(key: bytes) -> Tenant:
    """The key itself is the secret of its salt: without it nobody can compute the hash of a page."""
    name = hashlib.sha256(b"paceline/tenant/1" + key).hexdigest()[:16]
    return Tenant(name, tenant_salt(name, key))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

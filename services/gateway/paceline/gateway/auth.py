"""Who may ask, and which tenant they are."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import tenant_salt
from paceline.gateway.errors import Rejected, unauthorized
from paceline.gateway.keyfile import Entry, digest, read
from paceline.gateway.limits import UNLIMITED, Quota


@dataclass(frozen=True, slots=True)
class Tenant:
    """Requests of one tenant share cached pages; `salt` keeps those of others out of reach."""

    name: str
    salt: bytes
    quota: Quota = UNLIMITED


_DEFAULT = Tenant("default", tenant_salt("default"))


class Keys:
    """The API keys of a gateway; without any, everybody is the tenant "default"."""

    def __init__(self, keys: Sequence[str], entries: Sequence[Entry] = ()) -> None:
        """Each of `keys` is a tenant of its own; `entries` are those of a file."""
        self._tenants = [(digest(key.encode()), _tenant_of(key.encode())) for key in keys]
        for entry in entries:
            # Whoever knows a tenant's name must not be able to compute the hash of its pages.
            tenant = Tenant(entry.name, tenant_salt(entry.name, entry.digests[0]), entry.quota)
            self._tenants += [(known, tenant) for known in entry.digests]

    @classmethod
    def of(cls, keys: str, file: str) -> "Keys":
        """Of settings: keys by comma, and the name of a file or "". Raises `InvalidRequest` for a file that is none."""
        return cls(parse_keys(keys), read(Path(file)) if file else ())

    @property
    def open(self) -> bool:
        """Whether everybody may ask."""
        return not self._tenants

    def tenant(self, headers: Mapping[str, str]) -> Tenant:
        """Whose key it is that comes as `Authorization: Bearer` or, as Anthropic's clients send it, `x-api-key`.

        Raises `Rejected` with 401.
        """
        if not self._tenants:
            return _DEFAULT
        given = digest(_given(headers).encode("utf-8", "surrogateescape"))
        # Every key is compared, and each in constant time, so that time tells nothing about them.
        matches = [tenant for known, tenant in self._tenants if hmac.compare_digest(known, given)]
        if not matches:
            raise Rejected(unauthorized())
        return matches[0]


def parse_keys(text: str | None) -> list[str]:
    """Comma separated keys."""
    return [key.strip() for key in (text or "").split(",") if key.strip()]


def check_exposure(host: str, keys: Keys, *, allowed: bool) -> None:
    """Raises `InvalidRequest` when a gateway without keys would be reachable from other machines, unless that is
    `allowed` by name: inside a container, whose own network decides who reaches it."""
    if keys.open and not allowed and not _is_loopback(host):
        raise InvalidRequest(
            f"PACELINE_HOST={host} is reachable from other machines: set PACELINE_KEYS_FILE or PACELINE_API_KEYS, "
            "or bind 127.0.0.1",
            param="PACELINE_HOST",
        )


def _given(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def _tenant_of(key: bytes) -> Tenant:
    """The key itself is the secret of its salt: without it nobody can compute the hash of a page."""
    name = hashlib.sha256(b"paceline/tenant/1" + key).hexdigest()[:16]
    return Tenant(name, tenant_salt(name, key))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

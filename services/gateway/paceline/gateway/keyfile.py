"""The file that says which keys are whose: JSON, with hashes in place of keys, so that reading it opens nothing.

    {"tenants": [{"name": "acme", "keys": ["sha256:9f86d0..."], "requests_per_minute": 60, "tokens_per_minute": 10000}]}

Keys are random and long, so that one round of SHA-256 is as hard to turn back as many.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.limits import Quota

_PREFIX = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class _Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    keys: list[str]
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: list[_Tenant]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tenant with the SHA-256 digests of its keys."""

    name: str
    digests: tuple[bytes, ...]
    quota: Quota


def new_key() -> tuple[str, str]:
    """A key, and what the file has in its place."""
    key = f"pk-{secrets.token_urlsafe(32)}"
    return key, _PREFIX + digest(key.encode()).hex()


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read(path: Path) -> list[Entry]:
    """Raises `InvalidRequest` that names the file and what is wrong with it."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as e:
        raise InvalidRequest(f"{path} cannot be read: {e.strerror or e}", param="PACELINE_KEYS_FILE") from e
    except msgspec.DecodeError as e:
        raise InvalidRequest(f"{path}: {e}", param="PACELINE_KEYS_FILE") from e
    seen: set[str] = set()
    for tenant in file.tenants:
        for what in (f"tenant {tenant.name!r}", *tenant.keys):
            if what in seen:
                raise InvalidRequest(f"{path}: {what} is there twice", param="PACELINE_KEYS_FILE")
            seen.add(what)
        _check(path, tenant)
    return [_entry(tenant) for tenant in file.tenants]


def _check(path: Path, tenant: _Tenant) -> None:
    wrong = [key for key in tenant.keys if not _HASH.fullmatch(key)]
    limits = (tenant.requests_per_minute, tenant.tokens_per_minute)
    if wrong or not tenant.keys:
        message = f"keys of {tenant.name!r} must be sha256: and 64 hex digits, as `paceline key` prints them"
    elif any(limit is not None and limit < 1 for limit in limits):
        message = f"limits of {tenant.name!r} must be at least 1"
    else:
        return
    raise InvalidRequest(f"{path}: {message}", param="PACELINE_KEYS_FILE")


def _entry(tenant: _Tenant) -> Entry:
    digests = tuple(bytes.fromhex(key.removeprefix(_PREFIX)) for key in tenant.keys)
    return Entry(tenant.name, digests, Quota(tenant.requests_per_minute, tenant.tokens_per_minute))

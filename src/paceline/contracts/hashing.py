"""Content hashes of pages: a SHA-256 chain over 64-token pages, salted per tenant.

    root      = SHA-256("paceline/salt/1" | SHA-256(secret of the mesh) | tenant)
    hash[0]   = SHA-256("paceline/page/1" | root      | tokens[0:64]   as little-endian int32)
    hash[i]   = SHA-256("paceline/page/1" | hash[i-1] | tokens[64i:64i+64])

A page's hash therefore names everything before it as well, and two tenants never share one. Every field is
domain-tagged and of fixed length, so that no salt can imitate a page. Only full pages have a hash. The key of
a stored page joins its content hash to the KV profile id of the bytes (`page_key`).
"""

import hashlib
from array import array
from collections.abc import Sequence

PAGE_TOKENS = 64

_SALT = b"paceline/salt/1"
_PAGE = b"paceline/page/1"
_KEY = b"paceline/key/1"


def pages_for(tokens: int) -> int:
    """Pages that hold the KV of `tokens` positions."""
    return -(-tokens // PAGE_TOKENS)


def tenant_salt(tenant: str, secret: bytes = b"") -> bytes:
    """The 32-byte root of a tenant's chain. With a `secret` nobody outside the mesh can compute it."""
    return hashlib.sha256(_SALT + hashlib.sha256(secret).digest() + tenant.encode()).digest()


def extend_chain(parent: bytes, tokens: Sequence[int]) -> list[bytes]:
    """Hashes of the full pages of `tokens`, the first of which follows `parent` (a salt or a page hash)."""
    data = array("i", tokens).tobytes()
    stride = PAGE_TOKENS * 4
    hashes = []
    for start in range(0, len(data) - stride + 1, stride):
        parent = hashlib.sha256(_PAGE + parent + data[start : start + stride]).digest()
        hashes.append(parent)
    return hashes


def group_key(content_hash: bytes, group: int) -> bytes:
    """What names the page that holds the KV of one page group for this content; of group 0 the hash itself."""
    return content_hash if group == 0 else content_hash + group.to_bytes(2, "little")


def page_key(group_key: bytes, profile_id: bytes) -> bytes:
    """The 32-byte key under which the bytes of one page (see `group_key`) in one KV profile are stored."""
    return hashlib.sha256(_KEY + profile_id + group_key).digest()

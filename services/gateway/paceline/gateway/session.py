"""What ties requests of one conversation together, so that they meet their cached prefix again."""

import hashlib
from collections.abc import Mapping, Sequence

from paceline.contracts.hashing import PAGE_TOKENS, extend_chain

HEADERS = ("x-session-affinity", "x-session-id", "session-id", "thread-id", "x-claude-code-session-id")

# Deep enough to see behind a shared system prompt, and constant while a conversation grows.
_PREFIX_TOKENS = 4 * PAGE_TOKENS


def session_key(
    headers: Mapping[str, str], cache_key: str | None, *, salt: bytes, prompt: Sequence[int]
) -> bytes:
    """32 bytes, the same for every gateway: from the first of `HEADERS` (which must ignore case) that is set, then the
    body's prompt_cache_key, else the hash of the first pages. Empty for a prompt of less than a page.

    Tenants never share a key: `salt` is part of it.
    """
    name = next((value for header in HEADERS if (value := headers.get(header))), None) or cache_key
    if name:
        return hashlib.sha256(b"paceline/session/1" + salt + name.encode("utf-8", "surrogateescape")).digest()
    chain = extend_chain(salt, prompt[:_PREFIX_TOKENS])
    return chain[-1] if chain else b""

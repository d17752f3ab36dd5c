"""The order of bytes in a page, and the profile id that says whose bytes they are."""

import hashlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.contracts.hashing import PAGE_TOKENS

KvDtype: TypeAlias = Literal["float32", "bfloat16"]

_ITEM_BYTES: dict[KvDtype, int] = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Page-first order `[layer][K|V][head][token][dim]` of one page of `PAGE_TOKENS` positions.

    Transport and kvstore carry pages in this order; equal layouts are a raw copy.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: KvDtype

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(layers, 2, kv_heads, PAGE_TOKENS, head_dim)"""
        return (self.layers, 2, self.kv_heads, PAGE_TOKENS, self.head_dim)

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * _ITEM_BYTES[self.dtype]

    @property
    def page_bytes(self) -> int:
        return self.token_bytes * PAGE_TOKENS

    def profile_id(self, fingerprint: bytes) -> bytes:
        """32 bytes naming (model and weights revision, KV dtype, layout): pages of equal ids are interchangeable."""
        text = f"{self.layers}.{self.kv_heads}.{self.head_dim}.{self.dtype}.{PAGE_TOKENS}"
        return hashlib.sha256(b"paceline/profile/1" + fingerprint + text.encode()).digest()

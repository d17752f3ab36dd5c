"""What makes pages of two workers interchangeable: the KV profile."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import KvDtype, PageLayout, Plane, PlaneKind


@dataclass(frozen=True)
class KvProfile:
    """Whose KV an engine's pages hold and how they store it.

    `fingerprint` names the model and its weights. `scales` are what the values of `e4m3` planes are multiplied by, in
    the order of these planes in `layout`: of keys and of values in a "kv" plane, one in others.
    """

    fingerprint: bytes
    dtype: KvDtype
    layout: PageLayout
    scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        expected = sum(scales_of(plane) for _, _, plane in self.layout.planes())
        if len(self.scales) != expected or not all(0.0 < s < float("inf") for s in self.scales):
            raise InvalidRequest(f"a KV cache of {self.dtype} needs {expected} positive scales")

    @cached_property
    def id(self) -> bytes:
        """32 bytes that name all of it: pages of equal ids are a raw copy."""
        scales = struct.pack(f"<{len(self.scales)}d", *self.scales)
        layout = f"{PAGE_TOKENS} {self.layout.groups!r} {len(scales)}"
        return hashlib.sha256(b"paceline/profile/2" + self.fingerprint + layout.encode() + scales).digest()

    def stored_as(self, dtype: KvDtype, scales: tuple[float, ...]) -> "KvProfile":
        """The same KV as another worker keeps it. Raises `InvalidRequest` where that does not fit."""
        return KvProfile(self.fingerprint, dtype, self.layout.stored_as(dtype), scales)

    def plane_scales(self) -> Iterator[tuple[tuple[int, PlaneKind], tuple[float, ...]]]:
        """(layer, kind) and the scales of each plane that has any: one for each head."""
        at = 0
        for _, _, plane in self.layout.planes():
            count = scales_of(plane)
            if count:
                found = self.scales[at : at + count]
                yield (plane.layer, plane.kind), tuple(s for s in found for _ in range(plane.heads // count))
                at += count


def needs_scales(layout: PageLayout) -> bool:
    """Whether any plane's scales lie outside the pages."""
    return any(scales_of(plane) for _, _, plane in layout.planes())


def scales_of(plane: Plane) -> int:
    """Scales that lie outside the pages."""
    if plane.format != "e4m3":
        return 0
    return 2 if plane.kind == "kv" else 1

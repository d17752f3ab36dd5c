"""Pages of one KV profile rewritten as pages of another: a prefill worker's bfloat16 becomes a decode worker's FP8."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import LATENT_BLOCK, Plane, PlaneKind
from paceline.engine.profile import KvProfile
from paceline.model.floats import E4M3_MAX, decode_bfloat16, decode_e4m3, encode_bfloat16, encode_e4m3

UInt8: TypeAlias = npt.NDArray[np.uint8]
Float32: TypeAlias = npt.NDArray[np.float32]

_TINY = np.float32(1e-12)  # keeps the scale of a row of zeros from being zero
_BFLOAT16 = np.arange(1 << 16, dtype=np.uint16)

_Rewrite: TypeAlias = Callable[[UInt8, UInt8], None]


class PageConverter:
    """Rewrites pages. Values are rounded to the nearest, ties to even, and clipped to the target's range."""

    def __init__(self, source: KvProfile, target: KvProfile) -> None:
        """Raises `InvalidRequest` for profiles of different models."""
        if source.fingerprint != target.fingerprint or not _same_values(source, target):
            raise InvalidRequest("pages of one model cannot become pages of another")
        self.page_bytes = target.layout.page_bytes
        from_scales, to_scales = dict(source.plane_scales()), dict(target.plane_scales())
        self._rewrites: list[list[_Rewrite]] = [[] for _ in source.layout.groups]
        for (group, start, old), (_, to, new) in zip(
            source.layout.planes(), target.layout.planes(), strict=True
        ):
            key: tuple[int, PlaneKind] = (old.layer, old.kind)
            rewrite = _rewrite(old, from_scales.get(key), new, to_scales.get(key))
            self._rewrites[group].append(
                _at(rewrite, slice(start, start + old.bytes), slice(to, to + new.bytes))
            )

    def convert(self, group: int, page: UInt8) -> UInt8:
        """A page of page group `group`, uint8 [page_bytes of the source] -> uint8 [page_bytes of the target]"""
        out = np.empty(self.page_bytes, dtype=np.uint8)
        for rewrite in self._rewrites[group]:
            rewrite(page, out)
        return out


def _same_values(source: KvProfile, target: KvProfile) -> bool:
    def shape(profile: KvProfile) -> list[tuple[int, int, str, int, int]]:
        return [(g, p.layer, p.kind, p.heads, p.dim) for g, _, p in profile.layout.planes()]

    return shape(source) == shape(target)


def _at(rewrite: _Rewrite, source: slice, target: slice) -> _Rewrite:
    return lambda page, out: rewrite(page[source], out[target])


def _rewrite(
    old: Plane, old_scales: tuple[float, ...] | None, new: Plane, new_scales: tuple[float, ...] | None
) -> _Rewrite:
    """Bytes of one plane to those of the other."""
    if old.format == new.format and old_scales == new_scales:
        return _copy
    if old.format == "bfloat16" and new.format == "e4m3" and new_scales is not None:
        return _by_table(new, new_scales)
    decode, encode = _decoder(old, old_scales), _encoder(new, new_scales)
    return lambda page, out: encode(decode(page), out)


def _copy(page: UInt8, out: UInt8) -> None:
    out[:] = page


def _by_table(plane: Plane, scales: tuple[float, ...]) -> _Rewrite:
    """There are only 65,536 values to round: looking them up takes a tenth of the time."""
    tables: dict[float, UInt8] = {}

    def rewrite(page: UInt8, out: UInt8) -> None:
        if not tables:
            # With the first page, in the thread that copies: all tables of a large model take a tenth of a second.
            tables.update((scale, _scaled_e4m3(decode_bfloat16(_BFLOAT16), scale)) for scale in set(scales))
        codes, rows = page.view(np.uint16).reshape(plane.heads, -1), out.reshape(plane.heads, -1)
        for head, scale in enumerate(scales):
            np.take(tables[scale], codes[head], out=rows[head], mode="clip")

    return rewrite


def _scaled_e4m3(values: Float32, scale: float) -> UInt8:
    with np.errstate(over="ignore", invalid="ignore"):
        return encode_e4m3(values / np.float32(scale))


def _decoder(plane: Plane, scales: tuple[float, ...] | None) -> Callable[[UInt8], Float32]:
    """Bytes of a plane -> float32 [heads, PAGE_TOKENS, dim]"""
    shape = (plane.heads, PAGE_TOKENS, plane.dim)
    values = plane.heads * PAGE_TOKENS * plane.dim

    def latent(page: UInt8) -> Float32:
        rows = page.reshape(PAGE_TOKENS, plane.row_bytes)
        width = plane.dim - plane.rotary
        end = width + width // LATENT_BLOCK * 4
        factors = np.ascontiguousarray(rows[:, width:end]).view(np.float32)
        content = decode_e4m3(rows[:, :width]).reshape(PAGE_TOKENS, -1, LATENT_BLOCK) * factors[..., None]
        rotary = decode_bfloat16(np.ascontiguousarray(rows[:, end:]).view(np.uint16))
        return np.concatenate((content.reshape(PAGE_TOKENS, width), rotary), axis=1)[None]

    match plane.format:
        case "float32":
            return lambda page: page.view(np.float32).reshape(shape)
        case "bfloat16":
            return lambda page: decode_bfloat16(page.view(np.uint16)).reshape(shape)
        case "e4m3":
            factors = np.asarray(scales, dtype=np.float32)[:, None, None]
            return lambda page: decode_e4m3(page).reshape(shape) * factors
        case "e4m3_scaled":
            return lambda page: (
                decode_e4m3(page[:values]).reshape(shape)
                * page[values:].view(np.float32).reshape(*shape[:2], 1)
            )
        case "e4m3_latent":
            return latent


def _encoder(plane: Plane, scales: tuple[float, ...] | None) -> Callable[[Float32, UInt8], None]:
    """float32 [heads, PAGE_TOKENS, dim] -> bytes of a plane"""
    values = plane.heads * PAGE_TOKENS * plane.dim

    def plain(rows: Float32, out: UInt8) -> None:
        out[:] = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)

    def bfloat16(rows: Float32, out: UInt8) -> None:
        out[:] = encode_bfloat16(rows).view(np.uint8).reshape(-1)

    def e4m3(rows: Float32, out: UInt8) -> None:
        out[:] = encode_e4m3(rows / np.asarray(scales, dtype=np.float32)[:, None, None]).reshape(-1)

    def scaled(rows: Float32, out: UInt8) -> None:
        codes, factors = _quantise(rows)
        out[:values] = codes.reshape(-1)
        out[values:] = factors.view(np.uint8).reshape(-1)

    def latent(rows: Float32, out: UInt8) -> None:
        width = plane.dim - plane.rotary
        codes, factors = _quantise(rows[0, :, :width].reshape(PAGE_TOKENS, -1, LATENT_BLOCK))
        rotary = encode_bfloat16(np.ascontiguousarray(rows[0, :, width:])).view(np.uint8)
        out.reshape(PAGE_TOKENS, -1)[:] = np.concatenate(
            (codes.reshape(PAGE_TOKENS, width), factors.view(np.uint8), rotary), axis=1
        )

    encoders: dict[str, Callable[[Float32, UInt8], None]] = {
        "float32": plain,
        "bfloat16": bfloat16,
        "e4m3": e4m3,
        "e4m3_scaled": scaled,
        "e4m3_latent": latent,
    }
    return encoders[plane.format]


def _quantise(rows: Float32) -> tuple[UInt8, Float32]:
    """Codes [..., dim] and scales [...]: the largest value of each row becomes 448."""
    scales = np.maximum(np.abs(rows).max(-1), _TINY) / np.float32(E4M3_MAX)
    return encode_e4m3(rows / scales[..., None]), scales

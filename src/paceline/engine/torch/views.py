"""The planes of a pool as the kernels of attention see them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import LATENT_BLOCK, PageLayout, Plane
from paceline.engine.torch.kernels.kv_write import kv_write
from paceline.engine.torch.kernels.planes import LatentView, PlaneView
from paceline.engine.torch.pool import PlaneKey

_TYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e4m3_scaled": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class KvView:
    """Keys and values of one layer; `written` are the planes that rows of both are cut into, as their scales ask."""

    key: PlaneView
    value: PlaneView
    written: tuple[PlaneView, ...]

    def write(self, rows: Tensor, slots: Tensor) -> None:
        """rows: [T, 2 * kv_heads, dim]; slots: int64 [T]"""
        first = 0
        for plane in self.written:
            kv_write(rows[:, first : first + plane.heads], plane, slots)
            first += plane.heads


class Views:
    """Of uint8 [pages, page_bytes], by layer; `scales` as `KvProfile.plane_scales` gives them."""

    def __init__(
        self, pages: Tensor, layout: PageLayout, scales: Mapping[PlaneKey, tuple[float, ...]]
    ) -> None:
        self.groups: dict[PlaneKey, int] = {}
        self.kv: dict[int, KvView] = {}
        self.latent: dict[int, LatentView] = {}
        self.index: dict[int, PlaneView] = {}
        for group, offset, plane in layout.planes():
            key = (plane.layer, plane.kind)
            self.groups[key] = group
            stored, by = pages[:, offset : offset + plane.bytes], scales.get(key, (1.0,))
            match plane.kind:
                case "kv":
                    self.kv[plane.layer] = _kv(stored, plane, by)
                case "latent":
                    self.latent[plane.layer] = _latent(stored, plane, by[0])
                case "index":
                    self.index[plane.layer] = _plane(stored, plane)


def kernels_fit(layout: PageLayout) -> bool:
    """Whether the kernels of attention take every plane: in bfloat16 and FP8 those of all published models."""
    return all(_fits(plane) for _, _, plane in layout.planes())


def _fits(plane: Plane) -> bool:
    if plane.kind == "kv":
        # Wider ones in float32 need more shared memory than there is.
        return plane.format != "float32" or plane.dim <= 128
    if plane.kind == "index":
        return True
    sizes = (plane.dim - plane.rotary, plane.rotary)
    row = plane.row_bytes // 2 if plane.format == "e4m3_latent" else plane.dim
    return row % 8 == 0 and all(size >= 16 and size & (size - 1) == 0 for size in sizes)


def _plane(stored: Tensor, plane: Plane) -> PlaneView:
    values = plane.heads * PAGE_TOKENS * plane.dim
    codes = values * _TYPES[plane.format].itemsize
    view = stored[:, :codes].view(_TYPES[plane.format]).view(-1, plane.heads, PAGE_TOKENS, plane.dim)
    if plane.format != "e4m3_scaled":
        return PlaneView(view)
    scales = stored[:, codes:].view(torch.float32).view(-1, plane.heads, PAGE_TOKENS)
    return PlaneView(view, scales=scales)


def _kv(stored: Tensor, plane: Plane, scales: tuple[float, ...]) -> KvView:
    both, half = _plane(stored, plane), plane.heads // 2
    parts = slice(0, half), slice(half, plane.heads)
    key, value = (
        PlaneView(both.values[:, part], scale, None if both.scales is None else both.scales[:, part])
        for part, scale in zip(parts, (scales[0], scales[-1]), strict=True)
    )
    return KvView(key, value, (both,) if key.scale == value.scale == 1.0 else (key, value))


def _latent(stored: Tensor, plane: Plane, scale: float) -> LatentView:
    content = plane.dim - plane.rotary
    if plane.format == "e4m3_latent":
        rows = stored.view(-1, PAGE_TOKENS, plane.row_bytes)
        return LatentView.rows(rows, content, content // LATENT_BLOCK)
    rows = stored.view(_TYPES[plane.format]).view(-1, PAGE_TOKENS, plane.dim)
    return LatentView.joined(rows, content, scale)

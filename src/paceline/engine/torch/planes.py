"""One plane of every page: how rows of keys and values become stored bytes, and those values again."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import LATENT_BLOCK, Plane
from paceline.engine.step import Int64
from paceline.engine.torch.kernels.octets import decode_float8
from paceline.model.floats import E4M3_MAX

_TINY = 1e-12  # keeps the scale of a row of zeros from being zero
# Float8 has no copy by index; its bytes have.
_STORED = {"float32": torch.float32, "bfloat16": torch.bfloat16, "e4m3": torch.uint8}


@dataclass(frozen=True)
class Slots:
    """Where the rows of a step are written in one page group: int64 [T], page * PAGE_TOKENS + offset.

    What follows from it is the same for every layer, and made when the first one asks.
    """

    flat: Tensor
    _lines: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, slots: Int64, device: torch.device) -> "Slots":
        return cls(torch.from_numpy(slots).to(device))

    @cached_property
    def page(self) -> Tensor:
        return self.flat // PAGE_TOKENS

    @cached_property
    def offset(self) -> Tensor:
        return self.flat % PAGE_TOKENS

    def lines(self, per_page: int, heads: int) -> Tensor:
        """Lines of one token and head, of which a page has `per_page`: int64 [T * heads]"""
        if (index := self._lines.get((per_page, heads))) is None:
            head = torch.arange(0, heads * PAGE_TOKENS, PAGE_TOKENS, device=self.page.device)
            index = ((self.page * per_page + self.offset)[:, None] + head).view(-1)
            self._lines[per_page, heads] = index
        return index


@dataclass(frozen=True, slots=True)
class Table:
    """Pages of several sequences, int64 [sequences, n], and the index of their lines for every layer of a group."""

    pages: Tensor
    _lines: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def lines(self, per_page: int, heads: int) -> Tensor:
        """Lines of `PAGE_TOKENS` tokens of one head, of which a page has `per_page`: int64 [sequences * heads * n]"""
        if (index := self._lines.get((per_page, heads))) is None:
            head = torch.arange(heads, device=self.pages.device)
            index = (self.pages[:, None, :] * per_page + head[:, None]).view(-1)
            self._lines[per_page, heads] = index
        return index


class PlaneStore(Protocol):
    """A plane of all pages of a pool."""

    def write(self, slots: Slots, rows: Tensor) -> None:
        """Store `rows` [T, heads, dim]."""

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        """What the pages of `table` hold, [sequences, heads, n * PAGE_TOKENS, dim] in `dtype`."""


class LayerScale:
    """e4m3 values of a plane whose scales lie outside the pages; `scale` float32 [heads, 1, 1] multiplies them."""

    def __init__(self, scale: Tensor) -> None:
        self._scale = scale
        self._tables: dict[torch.dtype, Tensor] = {}

    def encode(self, rows: Tensor) -> Tensor:
        """[T, heads, dim] -> uint8 [T, heads, dim]"""
        return encode_e4m3(rows / self._scale[:, :, 0])

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """uint8 [n, heads, ...] -> `dtype` of that shape.

        By a table for each head: 0.7 ns a value on a core, where PyTorch's conversion and a product take 4.1.
        """
        if (tables := self._tables.get(dtype)) is None:
            every = (
                torch.arange(256, dtype=torch.uint8, device=codes.device).view(torch.float8_e4m3fn).float()
            )
            tables = self._tables[dtype] = (every * self._scale.view(-1, 1)).to(dtype)
        index = (head.reshape(-1).int() for head in codes.unbind(1))
        found = [each.index_select(0, i) for each, i in zip(tables.unbind(0), index, strict=True)]
        return torch.stack([head.view(codes[:, 0].shape) for head in found], 1)


class LinePlane:
    """Values without scales in the page, whose lines lie evenly through the whole pool: a read is one indexed copy."""

    def __init__(self, pages: Tensor, offset: int, plane: Plane, scale: LayerScale | None) -> None:
        flat = pages.view(-1).view(_STORED[plane.format])
        line = PAGE_TOKENS * plane.row_bytes
        self._plane = plane
        self._scale = scale
        self._per_page = pages.shape[1] // line
        values = plane.row_bytes // flat.element_size()
        self._slots = flat.view(-1, values)[offset // plane.row_bytes :]
        self._rows = flat.view(-1, PAGE_TOKENS * values)[offset // line :]

    def write(self, slots: Slots, rows: Tensor) -> None:
        index = slots.lines(self._per_page * PAGE_TOKENS, self._plane.heads)
        if self._scale is not None:
            rows = self._scale.encode(rows)
        self._slots.index_copy_(0, index, rows.reshape(-1, rows.shape[-1]).to(self._slots.dtype))

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        lines = self._rows.index_select(0, table.lines(self._per_page, self._plane.heads))
        found = lines.view(len(table.pages), self._plane.heads, -1, self._plane.dim)
        return found.to(dtype) if self._scale is None else self._scale.decode(found, dtype)


class ScaledPlane:
    """e4m3 values `[head][token][dim]`, then their scales `[head][token]`, float32."""

    def __init__(self, pages: Tensor, offset: int, plane: Plane) -> None:
        values = plane.heads * PAGE_TOKENS * plane.dim
        stored = pages[:, offset : offset + plane.bytes]
        self._values = stored[:, :values].view(-1, plane.heads, PAGE_TOKENS, plane.dim)
        self._scales = stored[:, values:].view(torch.float32).view(-1, plane.heads, PAGE_TOKENS)

    def write(self, slots: Slots, rows: Tensor) -> None:
        values, scales = quantise_rows(rows)
        self._values[slots.page, :, slots.offset] = values
        self._scales[slots.page, :, slots.offset] = scales

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        pages = table.pages.reshape(-1)
        values = decode_float8(self._values.index_select(0, pages).view(torch.float8_e4m3fn))
        values *= self._scales.index_select(0, pages)[..., None]
        return _by_sequence(values.to(dtype), table)


class LatentPlane:
    """Rows of e4m3 latent, float32 scales of 128 values each, bfloat16 rotary key (DeepSeek's fp8_ds_mla)."""

    def __init__(self, pages: Tensor, offset: int, plane: Plane) -> None:
        self._latent = plane.dim - plane.rotary
        self._scales_end = self._latent + 4 * (self._latent // LATENT_BLOCK)
        self._rows = pages[:, offset : offset + plane.bytes].view(-1, PAGE_TOKENS, plane.row_bytes)

    def write(self, slots: Slots, rows: Tensor) -> None:
        latent, rotary = rows[:, 0, : self._latent], rows[:, 0, self._latent :]
        values, scales = quantise_rows(latent.reshape(len(rows), -1, LATENT_BLOCK))
        parts = (values.view(len(rows), -1), scales.view(torch.uint8), rotary.bfloat16().view(torch.uint8))
        self._rows[slots.page, slots.offset] = torch.cat(parts, -1)

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        rows = self._rows.index_select(0, table.pages.reshape(-1))
        latent = decode_float8(rows[..., : self._latent].view(torch.float8_e4m3fn))
        scales = rows[..., self._latent : self._scales_end].contiguous().view(torch.float32)
        rotary = rows[..., self._scales_end :].contiguous().view(torch.bfloat16)
        scaled = latent.view(*scales.shape, LATENT_BLOCK) * scales[..., None]
        return _by_sequence(torch.cat((scaled.flatten(-2).to(dtype), rotary.to(dtype)), -1)[:, None], table)


class StridedPlane:
    """Values without scales whose lines do not lie evenly through the pool, because other planes differ in size."""

    def __init__(self, pages: Tensor, offset: int, plane: Plane, scale: LayerScale | None) -> None:
        stored = pages[:, offset : offset + plane.bytes].view(_STORED[plane.format])
        self._values = stored.view(-1, plane.heads, PAGE_TOKENS, plane.dim)
        self._scale = scale

    def write(self, slots: Slots, rows: Tensor) -> None:
        if self._scale is not None:
            rows = self._scale.encode(rows)
        self._values[slots.page, :, slots.offset] = rows.to(self._values.dtype)

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        found = self._values.index_select(0, table.pages.reshape(-1))
        wide = found.to(dtype) if self._scale is None else self._scale.decode(found, dtype)
        return _by_sequence(wide, table)


def open_plane(pages: Tensor, offset: int, plane: Plane, scale: Tensor | None) -> PlaneStore:
    """The plane at byte `offset` of every page uint8 [pages, page_bytes].

    `scale` float32 [heads, 1, 1] belongs to e4m3 values without scales of their own.
    """
    if plane.format == "e4m3_scaled":
        return ScaledPlane(pages, offset, plane)
    if plane.format == "e4m3_latent":
        return LatentPlane(pages, offset, plane)
    layer_scale = None if scale is None else LayerScale(scale)
    line = PAGE_TOKENS * plane.row_bytes
    if offset % line or pages.shape[1] % line:
        return StridedPlane(pages, offset, plane, layer_scale)
    return LinePlane(pages, offset, plane, layer_scale)


def encode_e4m3(values: Tensor) -> Tensor:
    """The bytes of `values` as e4m3, those beyond its range at its ends."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes of e4m3 [..., dim] and their float32 scales [...]: the largest value of each row becomes 448."""
    wide = rows.float()
    scales = wide.abs().amax(-1).clamp_min(_TINY) / E4M3_MAX
    return encode_e4m3(wide / scales[..., None]), scales


def _by_sequence(pages: Tensor, table: Table) -> Tensor:
    """[sequences * n, heads, PAGE_TOKENS, dim] -> [sequences, heads, n * PAGE_TOKENS, dim]"""
    return pages.view(*table.pages.shape, *pages.shape[1:]).transpose(1, 2).flatten(2, 3)

"""`kv_write` as one kernel: a program has all heads of one row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.planes import SMALLEST_SCALE, PlaneView
from paceline.model.floats import E4M3_MAX


def kv_write(x: Tensor, plane: PlaneView, slots: Tensor) -> None:
    assert slots.dtype == torch.int64
    assert slots.is_contiguous()
    assert slots.shape == x.shape[:1]
    _launch(len(x), x, (x.stride(0), 0, x.stride(1)), plane, slots, None)


def convert_pages(source: PlaneView, source_pages: Tensor, target: PlaneView, target_pages: Tensor) -> None:
    assert source_pages.dtype == target_pages.dtype == torch.int64
    assert source_pages.is_contiguous()
    assert target_pages.is_contiguous()
    assert source_pages.shape == target_pages.shape
    assert source.values.dtype != torch.float8_e4m3fn
    page, head, token, _ = source.values.stride()
    rows = len(source_pages) * PAGE_TOKENS
    _launch(rows, source.values, (token, page, head), target, target_pages, source_pages)


def _launch(
    rows: int, x: Tensor, strides: tuple[int, int, int], plane: PlaneView, to: Tensor, pages: Tensor | None
) -> None:
    """x has the strides (row, page, head); `to` are slots, or pages where `pages` are those of x."""
    values, scales = plane.values, plane.scales
    _, heads, tokens, dim = values.shape
    assert tokens == PAGE_TOKENS
    assert (x.shape[1], x.shape[-1]) == (heads, dim)
    assert x.stride(-1) == 1
    assert values.stride(3) == 1
    assert scales is None or values.dtype == torch.float8_e4m3fn
    if not rows:
        return
    _write[(rows,)](
        values,
        scales,
        x,
        to,
        pages,
        plane.scale,
        *strides,
        *values.stride()[:3],
        *((0, 0, 0) if scales is None else scales.stride()),
        HEADS=heads,
        BLOCK_HEADS=triton.next_power_of_2(heads),
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        PAGE=PAGE_TOKENS,
        LARGEST=E4M3_MAX,
        SMALLEST_SCALE=SMALLEST_SCALE,
    )


@triton.jit(do_not_specialize_on_alignment=("to", "source_pages"))
def _write(
    values,
    scales,
    source,
    to,
    source_pages,
    scale,
    source_row,
    source_page,
    source_head,
    values_page,
    values_head,
    values_token,
    scales_page,
    scales_head,
    scales_token,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    LARGEST: tl.constexpr,
    SMALLEST_SCALE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if source_pages is None:
        slot = tl.load(to + row)
        page = slot // PAGE
        token = slot % PAGE
        source += row * source_row
    else:
        page = tl.load(to + row // PAGE)
        token = row % PAGE
        source += tl.load(source_pages + row // PAGE) * source_page + token * source_row
    head = tl.arange(0, BLOCK_HEADS)
    d = tl.arange(0, BLOCK_DIM)
    inside = (head < HEADS)[:, None] & (d < DIM)[None, :]
    x = tl.load(source + head[:, None] * source_head + d[None, :], mask=inside, other=0.0).to(tl.float32)
    if values.dtype.element_ty == tl.float8e4nv:
        if scales is None:
            x = tl.div_rn(x, tl.full((BLOCK_HEADS, BLOCK_DIM), scale, tl.float32))
        else:
            largest = tl.max(tl.abs(x), 1)
            by = tl.maximum(tl.div_rn(largest, tl.full((BLOCK_HEADS,), LARGEST, tl.float32)), SMALLEST_SCALE)
            tl.store(
                scales + page * scales_page + head * scales_head + token * scales_token, by, mask=head < HEADS
            )
            x = tl.div_rn(x, tl.broadcast_to(by[:, None], (BLOCK_HEADS, BLOCK_DIM)))
        x = tl.clamp(x, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    at = values + page * values_page + head[:, None] * values_head + token * values_token + d[None, :]
    tl.store(at, x.to(values.dtype.element_ty), mask=inside)


def _specialisation(kv: str, heads: int, dim: int, **optional: str) -> Specialisation:
    pointers = {"values": f"*{kv}", "source": "*bf16", **optional}
    strides = ("source_row", "source_page", "source_head", "values_page", "values_head", "values_token")
    return Specialisation(
        kernel=_write,
        signature={
            **{name: f"{kind}:16" for name, kind in pointers.items()},
            "to": "*i64",
            "scale": "fp32",
            **dict.fromkeys(strides, "i32:16"),
            **dict.fromkeys(("scales_page", "scales_head", "scales_token"), "i32"),
        },
        constants={
            **dict.fromkeys({"scales", "source_pages"} - optional.keys()),
            "HEADS": heads,
            "BLOCK_HEADS": heads,
            "DIM": dim,
            "BLOCK_DIM": dim,
            "PAGE": PAGE_TOKENS,
            "LARGEST": E4M3_MAX,
            "SMALLEST_SCALE": SMALLEST_SCALE,
        },
    )


AOT = (
    _specialisation("bf16", 8, 128),
    _specialisation("fp8e4nv", 8, 128),
    _specialisation("fp8e4nv", 8, 128, scales="*fp32", source_pages="*i64"),
    _specialisation("fp8e4nv", 4, 128, scales="*fp32"),
)

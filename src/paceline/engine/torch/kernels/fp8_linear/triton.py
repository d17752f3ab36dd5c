"""e4m3 by e4m3 on a GPU's tensor cores.

Each 128 columns are one product of 8-bit floats, which is scaled and added to the sum in float32: these cores keep some
14 bits of a sum, and an own addition every 128 terms bounds what is lost (arXiv 2412.19437, section 3.3.2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.fp8_linear.naive import GROUP
from paceline.engine.torch.kernels.tiles import shared_by, splits, tile_of, token_block
from paceline.model.floats import E4M3_MAX


@triton.jit(do_not_specialize=("tokens",))
def _quantise(
    x,
    rounded,
    scales,
    tokens,
    columns,
    groups,
    stride,
    MAX: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """GROUPS groups of one row of x; scales are float32 [groups, tokens]."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(x + row * stride + column, column < columns, 0.0).to(tl.float32)
    scale = tl.div_rn(tl.max(tl.abs(values), 1), MAX)
    scale = tl.where(scale == 0.0, 1.0, scale)
    values = tl.div_rn(values, tl.broadcast_to(scale[:, None], values.shape))
    values = tl.clamp(values, -MAX, MAX, propagate_nan=tl.PropagateNan.ALL)
    tl.store(rounded + row * columns + column, values.to(tl.float8e4nv), column < columns)
    tl.store(scales + group * tokens + row, scale, group < groups)


@triton.jit(do_not_specialize=("tokens", "part"))
def _linear(
    x, x_scales, weight, scales, out, tokens, rows, columns, groups, scale_columns, part,
    BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, GROUP: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """out [splits, tokens, rows]; each split sums `part` groups.

    x_scales: [groups, tokens], so that the many of a thread lie together: in the other order their addresses alone
        took 64 registers and spilled
    scales: one for BLOCK_ROWS rows and BLOCK_GROUPS groups
    """
    t, r = tile_of(tl.program_id(0), tl.cdiv(tokens, TOKENS), rows, ROWS)
    token, row = t * TOKENS + tl.arange(0, TOKENS), r * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * part
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    x += token.to(tl.int64)[None, :] * columns
    weight += row.to(tl.int64)[:, None] * columns
    for group in range(first, tl.minimum(first + part, groups)):
        column = group * GROUP + tl.arange(0, GROUP)
        left = tl.load(weight + column[None, :], (row < rows)[:, None] & (column < columns)[None, :], 0.0)
        right = tl.load(x + column[:, None], (column < columns)[:, None] & (token < tokens)[None, :], 0.0)
        scale = tl.load(scales + row // BLOCK_ROWS * scale_columns + group // BLOCK_GROUPS, row < rows, 0.0)
        x_scale = tl.load(x_scales + group * tokens + token, token < tokens, 0.0)
        acc += tl.dot(left, right) * (scale[:, None] * x_scale[None, :])
    line = (tl.program_id(1) * tokens + token).to(tl.int64)[None, :]
    mask = (row < rows)[:, None] & (token < tokens)[None, :]
    tl.store(out + line * rows + row[:, None], acc.to(out.dtype.element_ty), mask)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """As `naive.quantise`, with the scales as [groups, T]; x [T, in] has stride 1 in its rows."""
    (tokens, columns), groups = x.shape, triton.cdiv(x.shape[1], GROUP)
    assert x.stride(1) == 1
    rounded = torch.empty((tokens, columns), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((groups, tokens), dtype=torch.float32, device=x.device)
    grid = (tokens, triton.cdiv(groups, _GROUPS))
    _quantise[grid](
        x, rounded, scales, tokens, columns, groups, x.stride(0), MAX=E4M3_MAX, GROUPS=_GROUPS, GROUP=GROUP
    )
    return rounded, scales


def fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """See the package. Weights and scales are contiguous; a block is all columns or a multiple of 128."""
    (tokens, columns), rows = x.shape, len(weight)
    assert weight.shape == (rows, columns) and weight.dtype == torch.float8_e4m3fn and weight.is_contiguous()
    assert block[1] >= columns or block[1] % GROUP == 0
    assert scales.shape == (triton.cdiv(rows, block[0]), triton.cdiv(columns, block[1]))
    assert scales.dtype == torch.float32 and scales.is_contiguous()
    if not tokens:
        return x.new_empty(0, rows)
    tile_tokens = token_block(tokens)
    tile = _TILES[tile_tokens]
    groups = triton.cdiv(columns, GROUP)
    tiles = triton.cdiv(tokens, tile_tokens) * triton.cdiv(rows, tile["ROWS"])
    part = triton.cdiv(groups, splits(tiles, groups))
    parts = triton.cdiv(groups, part)
    # Parts are added in a fixed order: atomic additions would make a token depend on chance.
    out = x.new_empty(parts, tokens, rows, dtype=x.dtype if parts == 1 else torch.float32)
    _linear[(tiles, parts)](
        *quantise(x), weight, scales, out, tokens, rows, columns, groups, scales.shape[1], part,
        BLOCK_ROWS=shared_by(block[0], rows), BLOCK_GROUPS=shared_by(triton.cdiv(block[1], GROUP), groups), GROUP=GROUP,
        TOKENS=tile_tokens, **tile,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(x.dtype)


_GROUPS = 8  # a program of `_quantise` rounds so many groups

# By the tokens of a tile: rows of the weights, warps, loads in flight.
_TILES = {
    16: {"ROWS": 64, "num_warps": 4, "num_stages": 5},
    32: {"ROWS": 64, "num_warps": 4, "num_stages": 5},
    64: {"ROWS": 128, "num_warps": 8, "num_stages": 4},
    128: {"ROWS": 128, "num_warps": 8, "num_stages": 4},
}

AOT = (
    Specialisation(
        kernel=_quantise,
        signature={
            "x": "*bf16:16", "rounded": "*fp8e4nv:16", "scales": "*fp32:16",
            "tokens": "i32", "columns": "i32:16", "groups": "i32", "stride": "i32:16",
        },
        constants={"MAX": E4M3_MAX, "GROUPS": _GROUPS, "GROUP": GROUP},
    ),
    *(
        Specialisation(
            kernel=_linear,
            signature={
                "x": "*fp8e4nv:16", "x_scales": "*fp32:16", "weight": "*fp8e4nv:16", "scales": "*fp32:16",
                "out": "*bf16:16", "tokens": "i32", "rows": "i32:16", "columns": "i32:16", "groups": "i32",
                "scale_columns": "i32", "part": "i32",
            },
            constants={
                "BLOCK_ROWS": 128, "BLOCK_GROUPS": 1, "GROUP": GROUP, "TOKENS": tokens, "ROWS": _TILES[tokens]["ROWS"],
            },
            num_warps=_TILES[tokens]["num_warps"],
            num_stages=_TILES[tokens]["num_stages"],
        )
        for tokens in (16, 64, 128)
    ),
)  # fmt: skip

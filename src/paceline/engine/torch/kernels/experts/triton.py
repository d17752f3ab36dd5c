"""Experts on a GPU: rows sorted by expert, then two grouped products, each with what follows it.

`expert_blocks` gives each expert whole blocks of rows, so that a program multiplies by one expert's weights; `_gate_up`
writes a row of I for each (token, expert), `_down` a row of H, and those of a token are added up at last. As in
`kernels.w4a16`, weights are the left factor; where they are e4m3, the right one is too, as in `kernels.fp8_linear`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.expert_blocks.triton import align
from paceline.engine.torch.kernels.experts.formats import ExpertLayer, Experts, Fp8Experts
from paceline.engine.torch.kernels.experts.operands import TILES, by_words, format_of, most_tokens, operands
from paceline.engine.torch.kernels.fp8_linear.triton import quantise
from paceline.engine.torch.kernels.tiles import tile_of, token_block
from paceline.engine.torch.kernels.w4a16.triton import by_nibble, nibble_product


@triton.jit
def _product(
    x, x_scales, lines, x_rows, x_mask, weight, scales, zeros, factors, rows, row_mask, columns, scale_columns,
    FORMAT: tl.constexpr, HAS_ZEROS: tl.constexpr, GROUP_ROWS: tl.constexpr, GROUP_COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, TOKENS]: `rows` of one expert's weights by `x_rows` of x [lines, columns]; words count for 4 bits.

    x_scales: [columns / COLUMNS, lines], of x in e4m3
    """
    if FORMAT == "int4" or FORMAT == "fp4":
        acc = nibble_product(
            x, x_rows, x_mask, weight, scales, zeros, rows, row_mask, columns, 0, columns,
            FORMAT, GROUP_COLUMNS, HAS_ZEROS, TOKENS, ROWS, COLUMNS,
        )  # fmt: skip
    else:
        acc = tl.zeros((ROWS, TOKENS), tl.float32)
        x += x_rows.to(tl.int64)[None, :] * columns
        weight += rows.to(tl.int64)[:, None] * columns
        for start in range(0, columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            right = tl.load(x + column[:, None], (column < columns)[:, None] & x_mask[None, :], 0.0)
            left = tl.load(weight + column[None, :], row_mask[:, None] & (column < columns)[None, :], 0.0)
            if FORMAT == "fp8":
                group = rows // GROUP_ROWS * scale_columns + start // GROUP_COLUMNS
                scale = tl.load(scales + group, row_mask, 0.0)
                x_scale = tl.load(x_scales + start // COLUMNS * lines + x_rows, x_mask, 0.0)
                acc += tl.dot(left, right) * (scale[:, None] * x_scale[None, :])
            else:
                acc = tl.dot(left, right, acc, input_precision="ieee")
    if FORMAT == "fp4":
        acc *= tl.load(factors + rows, row_mask, 0.0)[:, None]
    return acc


# Numbers that differ from step to step, for whose sizes nothing shall be compiled anew.
_STEP_NUMBERS = ("pairs", "blocks")


@triton.jit(do_not_specialize=_STEP_NUMBERS)
def _gate_up(
    x, x_scales, slots, owners, shares, out, weight, scales, zeros, factors, bias,
    pairs, per_token, inner, blocks, columns, scale_columns, weight_stride, scale_stride,
    ACTIVATION: tl.constexpr, SCALE_INPUT: tl.constexpr, HAS_BIAS: tl.constexpr, OUT_SLICES: tl.constexpr,
    FORMAT: tl.constexpr, HAS_ZEROS: tl.constexpr, GROUP_ROWS: tl.constexpr, GROUP_COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [pairs, inner]; with OUT_SLICES = 4 in the order of `nibble_product`, [pairs, 4, inner / 4]."""
    block, r = tile_of(tl.program_id(0), blocks, 2 * inner, ROWS)
    expert = tl.load(owners + block).to(tl.int64)
    if expert < 0:
        return
    slot = tl.load(slots + block * TOKENS + tl.arange(0, TOKENS))
    lane = tl.arange(0, ROWS)
    unit = r * (ROWS // 2) + lane // 2
    # Gate and up of a unit lie side by side in the tile, wherever they are in memory.
    row = 2 * unit + lane % 2 if ACTIVATION == "gpt_oss" else unit + lane % 2 * inner
    acc = _product(
        x, x_scales, pairs // per_token, slot // per_token, slot < pairs,
        weight + expert * weight_stride, scales + expert * scale_stride, zeros + expert * scale_stride,
        factors + expert * 2 * inner, row, unit < inner, columns, scale_columns,
        FORMAT, HAS_ZEROS, GROUP_ROWS, GROUP_COLUMNS, TOKENS, ROWS, COLUMNS,
    )  # fmt: skip
    if SCALE_INPUT:
        acc *= tl.load(shares + slot, slot < pairs, 0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + expert * 2 * inner + row, unit < inner, 0.0).to(tl.float32)[:, None]
    gate, up = tl.split(tl.permute(tl.reshape(acc, (ROWS // 2, 2, TOKENS)), (0, 2, 1)))
    if ACTIVATION == "gpt_oss":
        gate = tl.minimum(gate, 7.0, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -7.0, 7.0, propagate_nan=tl.PropagateNan.ALL)
        acted = (up + 1.0) * gate * tl.sigmoid(1.702 * gate)
    else:
        acted = gate * tl.sigmoid(gate) * up
    unit = r * (ROWS // 2) + tl.arange(0, ROWS // 2)
    column = unit % OUT_SLICES * (inner // OUT_SLICES) + unit // OUT_SLICES
    place = slot.to(tl.int64)[None, :] * inner + column[:, None]
    tl.store(out + place, acted.to(out.dtype.element_ty), (unit < inner)[:, None] & (slot < pairs)[None, :])


@triton.jit(do_not_specialize=_STEP_NUMBERS)
def _down(
    x, x_scales, slots, owners, shares, out, weight, scales, zeros, factors, bias,
    pairs, rows, blocks, columns, scale_columns, weight_stride, scale_stride,
    SCALE_OUTPUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    FORMAT: tl.constexpr, HAS_ZEROS: tl.constexpr, GROUP_ROWS: tl.constexpr, GROUP_COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """out [pairs, rows]"""
    block, r = tile_of(tl.program_id(0), blocks, rows, ROWS)
    expert = tl.load(owners + block).to(tl.int64)
    if expert < 0:
        return
    slot = tl.load(slots + block * TOKENS + tl.arange(0, TOKENS))
    row = r * ROWS + tl.arange(0, ROWS)
    acc = _product(
        x, x_scales, pairs, slot, slot < pairs,
        weight + expert * weight_stride, scales + expert * scale_stride, zeros + expert * scale_stride,
        factors + expert * rows, row, row < rows, columns, scale_columns,
        FORMAT, HAS_ZEROS, GROUP_ROWS, GROUP_COLUMNS, TOKENS, ROWS, COLUMNS,
    )  # fmt: skip
    if HAS_BIAS:
        acc += tl.load(bias + expert * rows + row, row < rows, 0.0).to(tl.float32)[:, None]
    if SCALE_OUTPUT:
        acc *= tl.load(shares + slot, slot < pairs, 0.0)[None, :]
    place = slot.to(tl.int64)[None, :] * rows + row[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), (row < rows)[:, None] & (slot < pairs)[None, :])


def experts(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    """See the package. The tensors of the layer are contiguous; dense ones have the type of x."""
    (tokens, hidden), (count, doubled, _) = x.shape, layer.gate_up.shape
    per_token, inner = expert_ids.shape[1], doubled // 2
    assert layer.gate_up.shape[2] == hidden and layer.down.shape == (count, hidden, inner)
    assert expert_ids.dtype == torch.int64 and weights.dtype == torch.float32
    assert expert_ids.shape == weights.shape == (tokens, per_token)
    if not tokens:
        return torch.empty_like(x)
    pairs = tokens * per_token
    block = min(token_block(triton.cdiv(pairs, count)), most_tokens(layer.gate_up), most_tokens(layer.down))
    slots, owners = align(expert_ids, count, block)
    blocks, shares = len(owners), weights.contiguous()
    up_tile, down_tile = TILES[format_of(layer.gate_up), block], TILES[format_of(layer.down), block]
    acted = x.new_empty(pairs, inner)
    _gate_up[(blocks * triton.cdiv(doubled, up_tile["ROWS"]),)](
        *_factor(by_nibble(x.contiguous()) if by_words(layer.gate_up) else x.contiguous(), layer.gate_up),
        slots, owners, shares, acted, bias=_bias(layer.gate_up_bias, shares),
        pairs=pairs, per_token=per_token, inner=inner, blocks=blocks,
        ACTIVATION=layer.activation, SCALE_INPUT=layer.scale_input, HAS_BIAS=layer.gate_up_bias is not None,
        OUT_SLICES=4 if by_words(layer.down) else 1, TOKENS=block, **operands(layer.gate_up, x.dtype), **up_tile,
    )  # fmt: skip
    out = x.new_empty(pairs, hidden)
    _down[(blocks * triton.cdiv(hidden, down_tile["ROWS"]),)](
        *_factor(acted, layer.down), slots, owners, shares, out, bias=_bias(layer.down_bias, shares),
        pairs=pairs, rows=hidden, blocks=blocks,
        SCALE_OUTPUT=not layer.scale_input, HAS_BIAS=layer.down_bias is not None,
        TOKENS=block, **operands(layer.down, x.dtype), **down_tile,
    )  # fmt: skip
    return out if per_token == 1 else out.view(tokens, per_token, hidden).sum(1)


def _factor(x: Tensor, matrix: Experts) -> tuple[Tensor, Tensor]:
    """What `matrix` is multiplied by, and its scales where it has any."""
    return quantise(x) if isinstance(matrix, Fp8Experts) else (x, x)


def _bias(bias: Tensor | None, stand_in: Tensor) -> Tensor:
    assert bias is None or bias.is_contiguous()
    return stand_in if bias is None else bias


_WEIGHTS = {
    "dense": ("*bf16:16", "*bf16:16", (1, 1)),
    "int4": ("*i32:16", "*bf16:16", (1, 4)),
    "fp4": ("*i32:16", "*u8:16", (1, 4)),
    "fp8": ("*fp8e4nv:16", "*fp32:16", (128, 128)),
}


def _specialisation(
    kernel: object, form: str, tokens: int, more: dict[str, str], **constants: object
) -> Specialisation:
    weight, scales, group = _WEIGHTS[form]
    tile = TILES[form, tokens]
    return Specialisation(
        kernel=kernel,
        signature={
            "x": "*fp8e4nv:16" if form == "fp8" else "*bf16:16", "x_scales": "*fp32:16", "slots": "*i32:16",
            "owners": "*i32:16", "shares": "*fp32:16", "out": "*bf16:16",
            "weight": weight, "scales": scales, "zeros": scales, "factors": "*fp32:16", "bias": "*bf16:16",
            "pairs": "i32", "blocks": "i32",
            "columns": "i32:16", "scale_columns": "i32", "weight_stride": "i32:16", "scale_stride": "i32", **more,
        },
        constants={
            "FORMAT": form, "HAS_ZEROS": False, "GROUP_ROWS": group[0], "GROUP_COLUMNS": group[1],
            "TOKENS": tokens, "ROWS": tile["ROWS"], "COLUMNS": tile["COLUMNS"], **constants,
        },
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
    )  # fmt: skip


AOT = (
    *(
        _specialisation(
            _gate_up, form, tokens, {"per_token": "i32", "inner": "i32:16"},
            ACTIVATION="silu", SCALE_INPUT=False, HAS_BIAS=False, OUT_SLICES=4 if form in ("int4", "fp4") else 1,
        )
        for form in _WEIGHTS
        for tokens in (16, 64 if form == "fp8" else 128)
    ),
    _specialisation(
        _gate_up, "dense", 128, {"per_token": "i32", "inner": "i32:16"},
        ACTIVATION="gpt_oss", SCALE_INPUT=True, HAS_BIAS=True, OUT_SLICES=1,
    ),
    *(
        _specialisation(_down, form, tokens, {"rows": "i32:16"}, SCALE_OUTPUT=True, HAS_BIAS=True)
        for form in _WEIGHTS
        for tokens in (16, 64 if form == "fp8" else 128)
    ),
)  # fmt: skip

"""4-bit integers on a GPU: weights are expanded in registers, multiplied by the tensor cores and never written back.

A word holds eight neighbours of a row. Rather than put these in order, the kernel takes the i-th nibble of each word as
a matrix of its own and multiplies it by the activations of columns i, i + 8, ..., which the launcher gathers: a sum may
run in any order. Weights are the left factor, whose tile of 64 or more rows fills the tensor cores also when there is
but one row of activations.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.tiles import splits, tile_of, token_block


@triton.jit
def _value(bits, i: tl.constexpr, CODE: tl.constexpr):
    """The i-th nibble of each word as float32: 0 to 15, or for "fp4" what e2m1 means by it."""
    code = (bits >> (4 * i)) & 15
    value = code.to(tl.float32)
    if CODE == "fp4":
        # Its exponent and mantissa, moved to where a float32 has these, mean 2^-126 of the same, also if subnormal.
        value = (((code & 7) << 22) | ((code & 8) << 28)).to(tl.float32, bitcast=True) * 8.507059173023462e37
    return value


@triton.jit
def _affine(
    scales, zeros, lines, row_mask, word, last,
    CODE: tl.constexpr, GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    """Scale and zero of each word, float32 [ROWS, WORDS]; scales of type uint8 are exponents, e8m0."""
    mask = row_mask[:, None] & (word < last)[None, :]
    group = lines + (word // GROUP_WORDS)[None, :]
    scale = tl.load(scales + group, mask, 0.0)
    if scales.dtype.element_ty == tl.uint8:
        scale = (scale.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    scale = scale.to(tl.float32)
    zero = tl.full(scale.shape, 8.0 if CODE == "int4" else 0.0, tl.float32)
    if HAS_ZEROS:
        zero = tl.load(zeros + group, mask, 0).to(tl.float32)
    return scale, zero


@triton.jit
def nibble_product(
    x, x_rows, x_mask, packed, scales, zeros, rows, row_mask, words, first, last,
    CODE: tl.constexpr, GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, TOKENS]: weights `rows` by activations `x_rows`, summed over the words from `first` to `last`.

    x: [.., 8, words], so that x[r, i, j] belongs to nibble i of word j
    packed: [.., words]; scales, zeros: [.., words / GROUP_WORDS]
    CODE: "int4", less a zero that is 8 where HAS_ZEROS is not, or "fp4" (e2m1)
    """
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    rows = rows.to(tl.int64)[:, None]
    lines = rows * (words // GROUP_WORDS)
    x += x_rows.to(tl.int64)[None, :] * (8 * words)
    word = first + tl.arange(0, WORDS)
    # Two bytes are too few for an asynchronous copy, so that these loads are issued one step early by hand.
    scale, zero = _affine(scales, zeros, lines, row_mask, word, last, CODE, GROUP_WORDS, HAS_ZEROS)
    for _ in range(first, last, WORDS):
        inside = word < last
        bits = tl.load(packed + rows * words + word[None, :], row_mask[:, None] & inside[None, :], 0)
        ahead = _affine(scales, zeros, lines, row_mask, word + WORDS, last, CODE, GROUP_WORDS, HAS_ZEROS)
        for i in tl.static_range(8):
            tile = tl.load(x + (i * words + word)[:, None], inside[:, None] & x_mask[None, :], 0.0)
            weight = (_value(bits, i, CODE) - zero) * scale
            acc = tl.dot(weight.to(tile.dtype), tile, acc, input_precision="ieee")
        word += WORDS
        scale, zero = ahead
    return acc


@triton.jit
def _linear(
    x, packed, scales, zeros, out, tokens, rows, words, part,
    GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """out [splits, tokens, rows]; each split sums `part` words."""
    t, r = tile_of(tl.program_id(0), tl.cdiv(tokens, TOKENS), rows, ROWS)
    token, row = t * TOKENS + tl.arange(0, TOKENS), r * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * part
    acc = nibble_product(
        x, token, token < tokens, packed, scales, zeros, row, row < rows, words, first, tl.minimum(first + part, words),
        "int4", GROUP_WORDS, HAS_ZEROS, TOKENS, ROWS, WORDS,
    )  # fmt: skip
    line = (tl.program_id(1) * tokens + token).to(tl.int64)[None, :]
    mask = (row < rows)[:, None] & (token < tokens)[None, :]
    tl.store(out + line * rows + row[:, None], acc.to(out.dtype.element_ty), mask)


def by_nibble(x: Tensor) -> Tensor:
    """[T, in] -> [T, 8, in/8], as `nibble_product` reads activations."""
    return x.view(len(x), -1, 8).transpose(1, 2).contiguous()


def w4a16_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """See the package. Weights, scales and zeros are contiguous; x may have any strides."""
    (tokens, columns), (rows, words) = x.shape, packed.shape
    assert columns == 8 * words
    assert scales.shape[0] == rows and words % scales.shape[1] == 0
    assert packed.dtype == torch.int32 and packed.is_contiguous() and scales.is_contiguous()
    assert zeros is None or (zeros.shape == scales.shape and zeros.is_contiguous())
    block = token_block(tokens)
    tile = _TILES[block]
    tiles = triton.cdiv(tokens, block) * triton.cdiv(rows, tile["ROWS"])
    steps = triton.cdiv(words, tile["WORDS"])
    part = triton.cdiv(steps, splits(tiles, steps)) * tile["WORDS"]
    parts = triton.cdiv(words, part)
    # Parts are added in a fixed order: atomic additions would make a token depend on chance.
    out = x.new_empty(parts, tokens, rows, dtype=x.dtype if parts == 1 else torch.float32)
    _linear[(tiles, parts)](
        by_nibble(x.contiguous()), packed, scales, packed if zeros is None else zeros, out, tokens, rows, words, part,
        GROUP_WORDS=words // scales.shape[1], HAS_ZEROS=zeros is not None, TOKENS=block, **tile,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(x.dtype)


# By the tokens of a tile: rows and words of the weights, warps, loads in flight.
_TILES = {
    16: {"ROWS": 64, "WORDS": 32, "num_warps": 4, "num_stages": 4},
    32: {"ROWS": 64, "WORDS": 32, "num_warps": 4, "num_stages": 4},
    64: {"ROWS": 128, "WORDS": 32, "num_warps": 8, "num_stages": 3},
    128: {"ROWS": 128, "WORDS": 16, "num_warps": 8, "num_stages": 3},
}

AOT = tuple(
    Specialisation(
        kernel=_linear,
        signature={
            "x": "*bf16:16", "packed": "*i32:16", "scales": "*bf16:16", "zeros": "*u8:16", "out": "*fp32:16",
            "tokens": "i32", "rows": "i32:16", "words": "i32:16", "part": "i32:16",
        },
        constants={
            "GROUP_WORDS": 4, "HAS_ZEROS": zeros, "TOKENS": tokens,
            "ROWS": _TILES[tokens]["ROWS"], "WORDS": _TILES[tokens]["WORDS"],
        },
        num_warps=_TILES[tokens]["num_warps"],
        num_stages=_TILES[tokens]["num_stages"],
    )
    for tokens, zeros in ((16, False), (64, True), (128, False))
)  # fmt: skip

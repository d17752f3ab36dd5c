"""4-bit integers on a GPU: weights are expanded in registers, multiplied by the tensor cores and never written back.

A word holds eight neighbours of a row. Rather than put these in order, the kernel takes nibbles i and i + 4 of each
word as a matrix of its own and multiplies it by the activations of columns i, i + 4, i + 8, ..., which the launcher
gathers: a sum may run in any order. Two nibbles that lie 16 bits apart become two bfloat16 by the same instructions,
since their bits under those of 128 mean 128 + q. For 64 rows of 256 columns a warp executes 556 instructions; with each
nibble made a float32 by itself it took 988.

Weights are the left factor, whose tile of 64 or more rows fills the tensor cores also when there is but one row of
activations.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.tiles import splits, tile_of, token_block


@triton.jit
def _values(bits, zero, i: tl.constexpr, CODE: tl.constexpr):
    """Nibbles i and i + 4 of each word as bfloat16, exact: less `zero` (of 128 + zero), or what e2m1 means by them."""
    pair = bits >> (4 * i)
    # The exponent and mantissa of e2m1, where a bfloat16 has these, mean 2^-126 of the same, also if subnormal.
    fp4 = ((pair & 0x00070007) << 6) | ((pair & 0x00080008) << 12)
    pair = fp4 if CODE == "fp4" else (pair & 0x000F000F) | 0x43004300
    low = pair.to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = (pair >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    if CODE == "fp4":
        low, high = low * 8.507059173023462e37, high * 8.507059173023462e37
    else:
        low, high = low - zero, high - zero
    return low, high


@triton.jit
def _affine(
    scales, zeros, lines, row_mask, word, last,
    NARROW: tl.constexpr, GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    """Of each word [ROWS, WORDS]: scale, bfloat16 if NARROW, else float32, and 128 + zero, bfloat16.

    Scales of type uint8 are exponents, e8m0.
    """
    mask = row_mask[:, None] & (word < last)[None, :]
    group = lines + (word // GROUP_WORDS)[None, :]
    scale = tl.load(scales + group, mask, 0.0)
    if scales.dtype.element_ty == tl.uint8:
        scale = (scale.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
    zero = tl.full(scale.shape, 136.0, tl.bfloat16)
    if HAS_ZEROS:
        zero = (tl.load(zeros + group, mask, 0).to(tl.float32) + 128.0).to(tl.bfloat16)
    return scale.to(tl.bfloat16 if NARROW else tl.float32), zero


@triton.jit
def nibble_product(
    x, x_rows, x_mask, packed, scales, zeros, rows, row_mask, words, first, last,
    CODE: tl.constexpr, GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """float32 [ROWS, TOKENS]: weights `rows` by activations `x_rows`, summed over the words from `first` to `last`.

    x: [.., 4, 2 * words], as `by_nibble` makes it
    packed: [.., words]; scales, zeros: [.., words / GROUP_WORDS]
    CODE: "int4", less a zero that is 8 where HAS_ZEROS is not, or "fp4" (e2m1)
    """
    # A product of two bfloat16, rounded once, is that of their float32; other scales have more bits than these.
    NARROW: tl.constexpr = x.dtype.element_ty == tl.bfloat16 and (  # noqa: N806
        CODE == "fp4" or scales.dtype.element_ty == tl.bfloat16
    )
    acc = tl.zeros((ROWS, TOKENS), tl.float32)
    rows = rows.to(tl.int64)[:, None]
    lines = rows * (words // GROUP_WORDS)
    x += x_rows.to(tl.int64)[None, :] * (8 * words)
    word, half = first + tl.arange(0, WORDS), 2 * first + tl.arange(0, 2 * WORDS)
    # Two bytes are too few for an asynchronous copy, so that these loads are issued one step early by hand.
    scale, zero = _affine(scales, zeros, lines, row_mask, word, last, NARROW, GROUP_WORDS, HAS_ZEROS)
    for _ in range(first, last, WORDS):
        bits = tl.load(packed + rows * words + word[None, :], row_mask[:, None] & (word < last)[None, :], 0)
        ahead = _affine(scales, zeros, lines, row_mask, word + WORDS, last, NARROW, GROUP_WORDS, HAS_ZEROS)
        for i in tl.static_range(4):
            tile = tl.load(
                x + (i * 2 * words + half)[:, None], (half < 2 * last)[:, None] & x_mask[None, :], 0.0
            )
            low, high = _values(bits, zero, i, CODE)
            weight = tl.join(low.to(scale.dtype) * scale, high.to(scale.dtype) * scale)
            weight = tl.reshape(weight, (ROWS, 2 * WORDS)).to(tile.dtype)
            acc = tl.dot(weight, tile, acc, input_precision="ieee")
        word += WORDS
        half += 2 * WORDS
        scale, zero = ahead
    return acc


@triton.jit(do_not_specialize=("tokens",))
def _linear(
    x, packed, scales, zeros, factors, out, tokens, rows, words, part,
    CODE: tl.constexpr, GROUP_WORDS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """out [splits, tokens, rows]; each split sums `part` words. For "fp4", factors are float32 [rows]."""
    t, r = tile_of(tl.program_id(0), tl.cdiv(tokens, TOKENS), rows, ROWS)
    token, row = t * TOKENS + tl.arange(0, TOKENS), r * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * part
    acc = nibble_product(
        x, token, token < tokens, packed, scales, zeros, row, row < rows, words, first, tl.minimum(first + part, words),
        CODE, GROUP_WORDS, HAS_ZEROS, TOKENS, ROWS, WORDS,
    )  # fmt: skip
    if CODE == "fp4":
        acc *= tl.load(factors + row, row < rows, 0.0)[:, None]
    line = (tl.program_id(1) * tokens + token).to(tl.int64)[None, :]
    mask = (row < rows)[:, None] & (token < tokens)[None, :]
    tl.store(out + line * rows + row[:, None], acc.to(out.dtype.element_ty), mask)


def by_nibble(x: Tensor) -> Tensor:
    """[T, in] -> [T, 4, in/4], so that what nibbles i and i + 4 are multiplied by is contiguous."""
    return x.view(len(x), -1, 4).transpose(1, 2).contiguous()


def w4a16_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """See the package. Weights, scales and zeros are contiguous; x may have any strides."""
    assert zeros is None or (zeros.shape == scales.shape and zeros.is_contiguous())
    return nibble_linear(x, packed, scales, zeros, None)


def nibble_linear(
    x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, factors: Tensor | None
) -> Tensor:
    """As `w4a16_linear`; with factors, float32 [out], the codes are e2m1 and the scales may be uint8, for e8m0."""
    (tokens, columns), (rows, words) = x.shape, packed.shape
    assert columns == 8 * words
    assert scales.shape[0] == rows and words % scales.shape[1] == 0
    assert packed.dtype == torch.int32 and packed.is_contiguous() and scales.is_contiguous()
    if not tokens:
        return x.new_empty(0, rows)
    block = token_block(tokens)
    tile = _TILES[block]
    tiles = triton.cdiv(tokens, block) * triton.cdiv(rows, tile["ROWS"])
    steps = triton.cdiv(words, tile["WORDS"])
    part = triton.cdiv(steps, splits(tiles, steps)) * tile["WORDS"]
    parts = triton.cdiv(words, part)
    # Parts are added in a fixed order: atomic additions would make a token depend on chance.
    out = x.new_empty(parts, tokens, rows, dtype=x.dtype if parts == 1 else torch.float32)
    _linear[(tiles, parts)](
        by_nibble(x.contiguous()), packed, scales, packed if zeros is None else zeros,
        packed if factors is None else factors, out, tokens, rows, words, part,
        CODE="int4" if factors is None else "fp4", GROUP_WORDS=words // scales.shape[1], HAS_ZEROS=zeros is not None,
        TOKENS=block, **tile,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0).to(x.dtype)


# By the tokens of a tile: rows and words of the weights, warps, loads in flight.
_TILES = {
    16: {"ROWS": 64, "WORDS": 32, "num_warps": 4, "num_stages": 4},
    32: {"ROWS": 64, "WORDS": 32, "num_warps": 4, "num_stages": 4},
    64: {"ROWS": 128, "WORDS": 32, "num_warps": 8, "num_stages": 3},
    128: {"ROWS": 128, "WORDS": 16, "num_warps": 8, "num_stages": 3},
}


def specialisation(
    tokens: int, code: str, *, zeros: bool, scales: str = "bf16", group: int = 32
) -> Specialisation:
    """The kernel for a tile of so many tokens. `scales` is Triton's name of their type."""
    tile = _TILES[tokens]
    return Specialisation(
        kernel=_linear,
        signature={
            "x": "*bf16:16", "packed": "*i32:16", "scales": f"*{scales}:16",
            "zeros": "*u8:16", "factors": "*fp32:16", "out": "*fp32:16",
            "tokens": "i32", "rows": "i32:16", "words": "i32:16", "part": "i32:16",
        },
        constants={
            "CODE": code, "GROUP_WORDS": group // 8, "HAS_ZEROS": zeros, "TOKENS": tokens,
            "ROWS": tile["ROWS"], "WORDS": tile["WORDS"],
        },
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
    )  # fmt: skip


AOT = tuple(
    specialisation(tokens, "int4", zeros=zeros) for tokens, zeros in ((16, False), (64, True), (128, False))
)

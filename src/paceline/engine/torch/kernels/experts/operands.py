"""What the kernel of `experts` is told of a matrix: its tensors and how they are laid out, and tiles that suit it."""

import torch
from torch import Tensor

from paceline.engine.torch.kernels.experts.formats import DenseExperts, Experts, Fp8Experts, Int4Experts
from paceline.engine.torch.kernels.fp4_linear.experts import Fp4Experts
from paceline.engine.torch.kernels.fp4_linear.triton import as_exponents
from paceline.engine.torch.kernels.fp8_linear.naive import GROUP
from paceline.engine.torch.kernels.tiles import shared_by


def _tile(rows: int, columns: int, warps: int, stages: int) -> dict[str, int]:
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}


# By format and tokens of a tile; columns are words for 4 bits, and those of one scale for fp8.
TILES = {
    **{("dense", tokens): _tile(64, 128, 4, 4) for tokens in (16, 32)},
    **{("dense", tokens): _tile(128, 64, 8, 4) for tokens in (64, 128)},
    **{(form, tokens): _tile(64, 32, 4, 4) for form in ("int4", "fp4") for tokens in (16, 32)},
    **{(form, tokens): _tile(128, 16, 8, 3) for form in ("int4", "fp4") for tokens in (64, 128)},
    **{("fp8", tokens): _tile(64, GROUP, 4, 5) for tokens in (16, 32)},
    ("fp8", 64): _tile(128, GROUP, 8, 4),  # twice the tokens would spill: each has a scale in each step
}


def format_of(matrix: Experts) -> str:
    """Its name among the kernel's constants."""
    return {DenseExperts: "dense", Int4Experts: "int4", Fp4Experts: "fp4", Fp8Experts: "fp8"}[type(matrix)]


def most_tokens(matrix: Experts) -> int:
    """The largest tile that there is for it."""
    return max(tokens for form, tokens in TILES if form == format_of(matrix))


def by_words(matrix: Experts) -> bool:
    """Whether its columns are multiplied in the order of `w4a16.triton.nibble_product`."""
    return isinstance(matrix, Int4Experts | Fp4Experts)


def operands(matrix: Experts, dtype: torch.dtype) -> dict[str, object]:
    """What a kernel is told of `matrix`, whose factor is of `dtype`."""
    zeros: Tensor | None = None
    factors: Tensor | None = None
    match matrix:
        case DenseExperts(weight):
            scales, group, columns = weight, (1, 1), weight.shape[2]
            assert weight.dtype == dtype
        case Int4Experts(weight, scales, given):
            zeros = given
            columns = weight.shape[2]
            group = (1, columns // scales.shape[2])
            assert weight.dtype == torch.int32 and columns % scales.shape[2] == 0
            assert zeros is None or (zeros.shape == scales.shape and zeros.is_contiguous())
        case Fp4Experts(codes, plain_scales, factors):
            scales = as_exponents(plain_scales)
            # Two codes of a byte, the first in its low half, are eight of a word in the same order.
            weight = codes.view(torch.int32)
            columns = weight.shape[2]
            group = (1, columns // scales.shape[2])
            assert columns % scales.shape[2] == 0 and factors.is_contiguous()
        case Fp8Experts(weight, scales, block):
            rows, columns = weight.shape[1:]
            assert block[1] >= columns or block[1] % GROUP == 0
            assert scales.shape[1:] == (-(-rows // block[0]), -(-columns // block[1]))
            group = (shared_by(block[0], rows), shared_by(block[1], columns))
    assert weight.is_contiguous() and scales.is_contiguous()
    return {
        "weight": weight, "scales": scales, "zeros": scales if zeros is None else zeros,
        "factors": scales if factors is None else factors,
        "columns": columns, "scale_columns": scales.shape[2],
        "weight_stride": weight.stride(0), "scale_stride": scales.stride(0),
        "FORMAT": format_of(matrix), "HAS_ZEROS": zeros is not None, "GROUP_ROWS": group[0], "GROUP_COLUMNS": group[1],
    }  # fmt: skip

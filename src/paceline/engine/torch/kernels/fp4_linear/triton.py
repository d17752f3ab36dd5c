"""4-bit floats on a GPU: the nibbles lie as those of integers do, so that one kernel multiplies both."""

import torch
from torch import Tensor

from paceline.engine.torch.kernels.w4a16.triton import nibble_linear, specialisation


def fp4_linear(x: Tensor, codes: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
    """See the package. Codes, scales and factors are contiguous; x may have any strides."""
    assert codes.dtype == torch.uint8 and factors.shape == (len(codes),) and factors.is_contiguous()
    return nibble_linear(x, codes.view(torch.int32), as_exponents(scales), None, factors)


def as_exponents(scales: Tensor) -> Tensor:
    """e8m0 as uint8, a type that Triton has; others as they are."""
    return scales.view(torch.uint8) if scales.dtype == torch.float8_e8m0fnu else scales


# MXFP4, whose scales are exponents, and NVFP4.
AOT = tuple(
    specialisation(tokens, "fp4", zeros=False, scales=scales, group=group)
    for tokens in (16, 128)
    for scales, group in (("u8", 32), ("fp8e4nv", 16))
)

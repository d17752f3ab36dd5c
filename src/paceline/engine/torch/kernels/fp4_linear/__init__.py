"""Product with a matrix of 4-bit floats (e2m1), in groups that share a scale: NVFP4 and MXFP4."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.fp4_linear import naive


def fp4_linear(x: Tensor, codes: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
    """x W^T for W = e2m1 * the scale of its group * the factor of its row.

    x: [T, in] of any float type, in which the product is made
    codes: uint8 [out, in/2], the first of two values in the low half
    scales: [out, in/group], float8_e4m3fn (NVFP4, groups of 16) or float8_e8m0fnu (MXFP4, groups of 32)
    factors: float32 [out], one number throughout where a tensor has one
    returns [T, out] in the type of x
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.fp4_linear.triton import fp4_linear as on_gpu

        return on_gpu(x, codes, scales, factors)
    return naive.fp4_linear(x, codes, scales, factors)

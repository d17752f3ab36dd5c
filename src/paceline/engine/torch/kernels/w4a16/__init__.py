"""Product with a matrix of 4-bit integers, in groups that share a scale."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.w4a16 import naive


def w4a16_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Tensor:
    """x W^T for W = (q - zero) * scale.

    x: [T, in] of any float type, in which the product is made
    packed: int32 [out, in/8]; element i of a row lies in bits 4*(i%8) of word i//8, unsigned
    scales: [out, in/group] of any float type, group a multiple of 8
    zeros: uint8 [out, in/group], or None for 8 throughout
    returns [T, out] in the type of x
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.w4a16.triton import w4a16_linear as on_gpu

        return on_gpu(x, packed, scales, zeros)
    return naive.w4a16_linear(x, packed, scales, zeros)

"""Product with a matrix of 8-bit floats (e4m3), in blocks that share a scale."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.fp8_linear import naive


def fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """x W^T for W = weight * the scale of its block.

    x: [T, in] of any float type
    weight: float8_e4m3fn [out, in]
    scales: float32 [ceil(out / block[0]), ceil(in / block[1])], to multiply by
    block: rows and columns that share a scale: (out, in) for a tensor, (1, in) for channels, (128, 128) for DeepSeek-V3
    returns [T, out] in the type of x

    A CPU multiplies the weights as they are. A GPU rounds the activations to e4m3 as well, in groups of 128 of a token,
    as DeepSeek-V3 was trained (arXiv 2412.19437, section 3.3): `naive.fp8_linear_w8a8` states what it computes.
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.fp8_linear.triton import fp8_linear as on_gpu

        return on_gpu(x, weight, scales, block)
    return naive.fp8_linear(x, weight, scales, block)

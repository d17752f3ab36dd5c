"""e4m3 in plain PyTorch: with the activations as they are, as experts on a CPU, and rounded too, as a GPU does."""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from paceline.engine.torch.kernels.blocks import row_blocks
from paceline.engine.torch.kernels.octets import decode_float8
from paceline.model.floats import E4M3_MAX

GROUP = 128  # activations of a token that share a scale


def dequantise(
    weight: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype, first: int = 0
) -> Tensor:
    """e4m3 [rows, in] -> [rows, in], made in float32 and rounded once to `dtype`.

    `weight` are the rows from `first` on of the matrix that `scales` and `block` belong to.
    """
    rows, columns = weight.shape
    used = torch.arange(first, first + rows, device=weight.device) // block[0]
    spread = scales[used].repeat_interleave(block[1], 1)[:, :columns]
    return decode_float8(weight).mul_(spread).to(dtype)


def fp8_linear(x: Tensor, weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """See the package; the activations keep their precision."""
    out = x.new_empty(len(x), len(weight))
    for rows in row_blocks(*weight.shape):
        out[:, rows] = linear(x, dequantise(weight[rows], scales, block, x.dtype, rows.start))
    return out


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """[T, in] -> e4m3 [T, in], float32 [T, ceil(in / 128)]: the largest of a group becomes 448."""
    rows, columns = x.shape
    groups = pad(x.float(), (0, -columns % GROUP)).view(rows, -1, GROUP)
    scales = groups.abs().amax(-1) / E4M3_MAX
    scales = torch.where(scales == 0.0, 1.0, scales)
    rounded = (groups / scales[..., None]).clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return rounded.view(rows, -1)[:, :columns], scales


def fp8_linear_w8a8(x: Tensor, weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """See the package; both factors are e4m3.

    The products of each 128 columns are summed first, then scaled and added in float32: the tensor cores' own sums keep
    too few bits for thousands of terms.
    """
    rounded, row_scales = quantise(x)
    used = torch.arange(len(weight), device=weight.device) // block[0]
    out = x.new_zeros(len(x), len(weight), dtype=torch.float32)
    for group, start in enumerate(range(0, x.shape[1], GROUP)):
        columns = slice(start, start + GROUP)
        part = rounded[:, columns].float() @ weight[:, columns].float().T
        out += part * row_scales[:, group, None] * scales[used, start // block[1]]
    return out.to(x.dtype)

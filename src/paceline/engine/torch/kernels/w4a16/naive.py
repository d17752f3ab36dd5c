"""4-bit integers in plain PyTorch: the reference, and what experts run on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from paceline.engine.torch.kernels.blocks import row_blocks


def dequantise(packed: Tensor, scales: Tensor, zeros: Tensor | None, dtype: torch.dtype) -> Tensor:
    """int32 [rows, in/8] -> [rows, in], made in float32 and rounded once to `dtype`."""
    rows, groups = scales.shape
    # The low byte of a word comes first, as every platform of PyTorch has it.
    octets = packed.contiguous().view(torch.uint8)
    nibbles = torch.stack((octets & 15, octets >> 4), -1).view(rows, groups, -1)
    weight = nibbles.float()
    weight -= 8.0 if zeros is None else zeros[..., None]
    weight *= scales[..., None].float()
    return weight.view(rows, -1).to(dtype)


def w4a16_linear(x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """See the package."""
    out = x.new_empty(len(x), len(packed))
    for rows in row_blocks(len(packed), x.shape[1]):
        part = None if zeros is None else zeros[rows]
        out[:, rows] = linear(x, dequantise(packed[rows], scales[rows], part, x.dtype))
    return out

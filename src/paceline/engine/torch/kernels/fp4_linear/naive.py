"""4-bit floats in plain PyTorch: the reference, and what experts run on a CPU."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from paceline.engine.torch.kernels.blocks import row_blocks
from paceline.engine.torch.kernels.octets import decode_float8, decode_halves

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(codes: Tensor, scales: Tensor, factors: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [rows, in/2] -> [rows, in], made in float32 and rounded once to `dtype`."""
    rows, groups = scales.shape
    values = torch.tensor((*_POSITIVE, *(-v for v in _POSITIVE)), device=codes.device)
    weight = decode_halves(codes, values).view(rows, groups, -1)
    weight *= (decode_float8(scales) * factors[:, None])[..., None]
    return weight.view(rows, -1).to(dtype)


def fp4_linear(x: Tensor, codes: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
    """See the package."""
    out = x.new_empty(len(x), len(codes))
    for rows in row_blocks(len(codes), x.shape[1]):
        out[:, rows] = linear(x, dequantise(codes[rows], scales[rows], factors[rows], x.dtype))
    return out

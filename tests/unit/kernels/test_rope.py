"""A rotation is a product of complex numbers."""

import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.rope import naive, rope_, triton

ROWS, HEADS, HEAD_DIM = 3, 18, 24  # heads: more than one program takes


def queries(dtype: torch.dtype) -> Tensor:
    """A view of the middle of something wider, as the queries and keys among q|k|v are."""
    return torch.randn(ROWS, HEADS + 4, HEAD_DIM).to(dtype)[:, 1 : HEADS + 1]


def angles(dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, scaled as yarn does, so that no power of two hides a mistake."""
    turns = torch.randn(ROWS, dim // 2)
    return 1.1 * turns.cos(), 1.1 * turns.sin()


@pytest.mark.parametrize("dim", [24, 16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_naive_multiplies_complex_numbers(dim: int, interleaved: bool) -> None:
    x, (cos, sin) = queries(torch.float32), angles(dim)
    real, imaginary = (x[..., 0:dim:2], x[..., 1:dim:2]) if interleaved else x[..., :dim].chunk(2, -1)
    turned = torch.complex(real, imaginary) * torch.complex(cos, sin)[:, None]
    expected = x.clone()
    if interleaved:
        expected[..., :dim] = torch.stack((turned.real, turned.imag), -1).flatten(-2)
    else:
        expected[..., :dim] = torch.cat((turned.real, turned.imag), -1)
    rope_(x, cos, sin, interleaved=interleaved)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [24, 16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_triton_equals_naive(dim: int, interleaved: bool, dtype: torch.dtype) -> None:
    x, (cos, sin) = queries(dtype), angles(dim)
    expected = x.clone()
    naive.rope_(expected, cos, sin, interleaved=interleaved)
    triton.rope_(x, cos, sin, interleaved=interleaved)
    torch.testing.assert_close(x, expected)

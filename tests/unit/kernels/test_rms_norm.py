"""Normalisation against PyTorch's own in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline.engine.torch.kernels.rms_norm import add_rms_norm, naive, rms_norm, triton

EPS = 1e-2  # large enough to be missed


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A view into something wider, as queries and keys are."""
    return torch.randn(*shape[:-1], shape[-1] + 5).to(dtype)[..., : shape[-1]]


@pytest.mark.parametrize("shape", [(3, 40), (3, 4, 24)])
@pytest.mark.parametrize("per_head", [False, True])
def test_naive_is_the_formula(shape: tuple[int, ...], per_head: bool) -> None:
    x = 0.3 * rows(*shape)
    weight = torch.randn(shape[1:]) if per_head else torch.randn(shape[-1])
    expected = functional.rms_norm(x.double(), shape[-1:], None, EPS) * weight
    torch.testing.assert_close(rms_norm(x, weight, EPS).double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rms_norm(x, None, EPS).double() * weight, expected, rtol=1e-5, atol=1e-6)


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    x, residual, weight = rows(3, 40).bfloat16(), rows(3, 40).bfloat16(), torch.randn(40)
    normed, total = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, (x.double() + residual.double()).bfloat16())
    assert torch.equal(normed, rms_norm(total, weight, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "weight_shape"),
    [((3, 1100), (1100,)), ((2, 3, 24), (3, 24)), ((2, 3, 24), (24,)), ((2, 3, 24), None)],
)
def test_triton_equals_naive(
    shape: tuple[int, ...], weight_shape: tuple[int, ...] | None, dtype: torch.dtype
) -> None:
    x = rows(*shape, dtype=dtype)
    weight = None if weight_shape is None else torch.randn(weight_shape).to(dtype)
    found = triton.rms_norm(x, weight, EPS)
    assert found.is_contiguous()
    torch.testing.assert_close(found, naive.rms_norm(x, weight, EPS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_adds_the_residual(dtype: torch.dtype) -> None:
    x, residual, weight = rows(2, 72, dtype=dtype), torch.randn(2, 72).to(dtype), torch.randn(72)
    expected, expected_total = naive.add_rms_norm(x, residual, weight, EPS)
    normed, total = triton.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected)

"""e4m3 matrices, with a scale for each tensor, channel or block."""

import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.fp8_linear import fp8_linear, naive, triton

ROWS, COLUMNS = 200, 320  # neither a multiple of 128
_RTOL = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
BLOCKS = [(ROWS, COLUMNS), (1, COLUMNS), (128, 128)]


def matrix(block: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random weight and scales, and what they mean in float64."""
    random = torch.Generator().manual_seed(seed)
    weight = (100 * torch.randn(ROWS, COLUMNS, generator=random)).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-ROWS // block[0]), -(-COLUMNS // block[1]), generator=random) / 1000
    meaning = weight.double()
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            meaning[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]] *= scales[
                i, j
            ].double()
    return weight, scales, meaning


@pytest.mark.parametrize("block", BLOCKS)
def test_naive_is_the_product_with_the_scaled_weights(
    block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.engine.torch.kernels.blocks._ELEMENTS", 30 * COLUMNS)  # 30 rows at a time
    weight, scales, meaning = matrix(block)
    x = torch.randn(3, COLUMNS)
    torch.testing.assert_close(
        fp8_linear(x, weight, scales, block), (x.double() @ meaning.T).float(), rtol=1e-5, atol=1e-5
    )


def test_activations_are_rounded_by_the_largest_of_each_128() -> None:
    x = torch.zeros(2, 300)
    x[0, 5], x[0, 6], x[0, 299] = -896.0, 3.3, 1.0
    rounded, scales = naive.quantise(x)
    assert scales.tolist() == [[2.0, 1.0, pytest.approx(1 / 448)], [1.0, 1.0, 1.0]]
    assert rounded.float()[0, [5, 6, 299]].tolist() == [-448.0, 1.625, 448.0]
    assert not rounded[1].float().any()


@pytest.mark.parametrize("block", BLOCKS)
def test_rounding_activations_too_costs_what_three_bits_of_mantissa_cost(block: tuple[int, int]) -> None:
    weight, scales, meaning = matrix(block)
    x = torch.randn(16, COLUMNS, dtype=torch.float64)
    exact = x @ meaning.T
    # A rounding to 3 bits is off by up to 1/16, in the mean square by some 1/40.
    error = (naive.fp8_linear_w8a8(x.float(), weight, scales, block).double() - exact).norm() / exact.norm()
    assert 0.01 < error < 0.04


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 130])
@pytest.mark.parametrize("block", BLOCKS)
def test_triton_equals_naive(block: tuple[int, int], tokens: int, dtype: torch.dtype) -> None:
    weight, scales, _ = matrix(block, tokens)
    x = torch.randn(tokens, COLUMNS + 1)[:, :COLUMNS].to(dtype)
    expected = naive.fp8_linear_w8a8(x, weight, scales, block)
    torch.testing.assert_close(
        triton.fp8_linear(x, weight, scales, block), expected, rtol=_RTOL[dtype], atol=1e-5
    )


def test_a_row_with_nan_stays_one() -> None:
    weight, scales, _ = matrix((128, 128))
    x = torch.randn(2, COLUMNS)
    x[0, 300] = torch.nan
    for version in (naive.fp8_linear_w8a8, triton.fp8_linear):
        found = version(x, weight, scales, (128, 128))
        assert found[0].isnan().all()
        assert found[1].isfinite().all()


def test_triton_splits_a_long_sum_and_rounds_as_naive_does() -> None:
    x = torch.randn(2, 2000)
    rounded, scales = naive.quantise(x)
    found, found_scales = triton.quantise(x)
    assert torch.equal(found.view(torch.uint8), rounded.view(torch.uint8))
    assert torch.equal(found_scales, scales.T)
    weight, block = torch.randn(3, 2000).to(torch.float8_e4m3fn), (3, 2000)
    expected = naive.fp8_linear_w8a8(x, weight, torch.ones(1, 1), block)
    torch.testing.assert_close(triton.fp8_linear(x, weight, torch.ones(1, 1), block), expected)

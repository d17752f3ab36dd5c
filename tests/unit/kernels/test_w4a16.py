"""4-bit matrices against weights that the test packs and expands by itself, word by word."""

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.w4a16 import naive, triton, w4a16_linear


def packed_rows(
    rows: int, columns: int, group: int, *, zeros: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Random packed, scales and zeros, and what they mean in float64."""
    random = np.random.default_rng(rows * columns + group)
    values = random.integers(0, 16, (rows, columns))
    scales = torch.from_numpy(random.uniform(0.01, 0.1, (rows, columns // group))).bfloat16()
    zero = random.integers(0, 16, scales.shape) if zeros else np.full(scales.shape, 8)
    nibbles = values.reshape(rows, -1, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)
    packed = torch.from_numpy(np.bitwise_or.reduce(nibbles, axis=2).view(np.int32))
    weight = (values - zero.repeat(group, 1)) * scales.double().numpy().repeat(group, 1)
    return (
        packed,
        scales,
        torch.from_numpy(zero.astype(np.uint8)) if zeros else None,
        torch.from_numpy(weight),
    )


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_naive_is_the_product_with_the_expanded_weights(group: int, zeros: bool) -> None:
    packed, scales, zero, weight = packed_rows(24, 256, group, zeros=zeros)
    assert torch.equal(naive.dequantise(packed, scales, zero, torch.float32).double(), weight)
    x = torch.randn(3, 256)
    torch.testing.assert_close(w4a16_linear(x, packed, scales, zero), (x.double() @ weight.T).float())


def test_naive_expands_a_large_matrix_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.torch.kernels.blocks._ELEMENTS", 1000)  # 7 rows of 128
    packed, scales, zero, weight = packed_rows(24, 128, 32, zeros=True)
    x = torch.randn(2, 128)
    torch.testing.assert_close(w4a16_linear(x, packed, scales, zero), (x.double() @ weight.T).float())


@pytest.mark.parametrize(
    ("tokens", "rows", "columns", "group", "zeros"),
    [
        (1, 70, 1312, 32, False),  # one row, split over the columns, ragged rows and words
        (19, 64, 256, 64, True),
        (130, 65, 128, 128, False),  # two tiles of tokens, the second with two rows
    ],
)
def test_triton_equals_naive(tokens: int, rows: int, columns: int, group: int, zeros: bool) -> None:
    packed, scales, zero, _ = packed_rows(rows, columns, group, zeros=zeros)
    x = torch.randn(tokens, columns + 3)[:, :columns]
    expected = naive.w4a16_linear(x, packed, scales, zero)
    torch.testing.assert_close(triton.w4a16_linear(x, packed, scales, zero), expected, rtol=1e-4, atol=1e-4)


def test_triton_rounds_the_expanded_weights_as_naive_does() -> None:
    packed, scales, zero, _ = packed_rows(64, 128, 32, zeros=True)
    x = torch.randn(2, 128).bfloat16()
    expected = naive.w4a16_linear(x, packed, scales, zero)
    torch.testing.assert_close(triton.w4a16_linear(x, packed, scales, zero), expected, rtol=2**-7, atol=1e-4)

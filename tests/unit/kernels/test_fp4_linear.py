"""4-bit floats against a table of what their codes mean, each code in each half of a byte."""

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.fp4_linear import fp4_linear, naive, triton

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def matrix(rows: int, columns: int, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, scales (NVFP4 for groups of 16, else MXFP4) and factors, and what they mean in float64."""
    random = np.random.default_rng(rows)
    codes = random.permuted(np.resize(np.arange(16), (rows, columns)), axis=1)
    if group == 16:
        scales = torch.from_numpy(random.uniform(0.1, 2.0, (rows, columns // group))).to(torch.float8_e4m3fn)
    else:
        exponents = random.integers(117, 130, (rows, columns // group)).astype(np.uint8)
        scales = torch.from_numpy(exponents).view(torch.float8_e8m0fnu)
    factors = torch.from_numpy(random.uniform(0.5, 1.5, rows).astype(np.float32))
    meaning = (
        E2M1[codes] * scales.float().double().numpy().repeat(group, 1) * factors.double().numpy()[:, None]
    )
    packed = torch.from_numpy((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))
    return packed, scales, factors, torch.from_numpy(meaning)


@pytest.mark.parametrize("group", [16, 32])
def test_naive_is_the_product_with_what_the_codes_mean(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.torch.kernels.blocks._ELEMENTS", 1000)  # 7 rows of 128
    codes, scales, factors, meaning = matrix(24, 128, group)
    x = torch.randn(3, 128)
    expected = (x.double() @ meaning.T).float()
    torch.testing.assert_close(fp4_linear(x, codes, scales, factors), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "rows", "columns", "group"), [(1, 70, 1312, 32), (19, 30, 144, 16)])
def test_triton_equals_naive(tokens: int, rows: int, columns: int, group: int, dtype: torch.dtype) -> None:
    codes, scales, factors, meaning = matrix(rows, columns, group)
    x = torch.randn(tokens, columns).to(dtype)
    found = triton.fp4_linear(x, codes, scales, factors)
    # A bfloat16 result is compared with the exact one: weights need no rounding here, but naive rounds them.
    expected = (
        naive.fp4_linear(x, codes, scales, factors) if dtype == torch.float32 else x.double() @ meaning.T
    )
    torch.testing.assert_close(
        found, expected.to(dtype), rtol=1e-4 if dtype == torch.float32 else 2**-7, atol=1e-4
    )

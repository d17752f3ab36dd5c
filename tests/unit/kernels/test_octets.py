"""Tables say of every code what PyTorch or the definition of its format says."""

import pytest
import torch

from paceline.engine.torch.kernels.octets import decode_float8, decode_halves

EVERY = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e8m0fnu])
def test_bytes_are_floats(dtype: torch.dtype) -> None:
    codes = EVERY.view(dtype).view(8, 32)[:, ::2]
    torch.testing.assert_close(decode_float8(codes), codes.float(), rtol=0, atol=0, equal_nan=True)


def test_the_low_half_of_a_byte_comes_first() -> None:
    values = torch.arange(16.0) ** 2
    found = decode_halves(EVERY.view(4, 64), values)
    assert found.tolist() == [
        [float(half**2) for octet in range(start, start + 64) for half in (octet % 16, octet // 16)]
        for start in range(0, 256, 64)
    ]

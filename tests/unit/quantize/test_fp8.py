"""FP8 against torch's cast, transformers' block dequantisation and compressed-tensors'."""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from paceline.model.floats import Float32, UInt8
from paceline.quantize.format import Damaged
from paceline.quantize.fp8 import Fp8BlockFormat, Fp8ChannelFormat


def gaussian(rows: int, columns: int) -> Float32:
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def e4m3(stored: UInt8) -> torch.Tensor:
    return torch.from_numpy(stored).view(torch.float8_e4m3fn)


def test_transformers_reads_blocks() -> None:
    values = gaussian(256, 384) * np.linspace(0.01, 100, 384, dtype=np.float32)
    encoded = Fp8BlockFormat().encode(values)
    codes, scales = encoded.stored
    blocks = torch.from_numpy(values).view(2, 128, 3, 128)
    expected = blocks.abs().amax((1, 3)) / 448
    assert np.array_equal(scales.view("<f4"), expected.numpy())
    exact = (blocks / expected[:, None, :, None]).to(torch.float8_e4m3fn).view(256, 384)
    assert np.array_equal(codes, exact.view(torch.uint8).numpy())
    found = _dequantize_fp8_weight(e4m3(codes), expected, [128, 128], torch.float32)
    assert np.array_equal(found.numpy(), encoded.values)


def test_blocks_at_the_edges_are_smaller() -> None:
    """Like the 576 rows of DeepSeek's latent projection: each block counts nothing but its own values."""
    values = gaussian(192, 130)
    codes, scales = Fp8BlockFormat().encode(values).stored
    assert codes.shape == (192, 130)
    corner = np.abs(values[128:, 128:]).max() / np.float32(448)
    assert scales.view("<f4").shape == (2, 2)
    assert scales.view("<f4")[1, 1] == corner
    decoded = e4m3(codes).float().numpy()[128:, 128:] * corner
    assert np.array_equal(decoded, Fp8BlockFormat().encode(values).values[128:, 128:])


def test_compressed_tensors_reads_channels() -> None:
    values = gaussian(20, 96) * np.logspace(-6, 6, 20, dtype=np.float32)[:, None]
    values[3] = 0
    encoded = Fp8ChannelFormat().encode(values)
    codes, scales = encoded.stored
    args = QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy="channel")
    state = {
        "weight": e4m3(codes),
        "weight_scale": torch.from_numpy(scales.view(np.int16)).view(torch.bfloat16).float(),
    }
    found = BaseCompressor.get_value_from_registry("float-quantized").decompress(
        state, QuantizationScheme(targets=["Linear"], weights=args)
    )
    assert np.array_equal(found["weight"].numpy(), encoded.values)
    error = np.linalg.norm(encoded.values - values, axis=1)
    # Half a step of three mantissa bits, at the worst.
    assert (error <= np.linalg.norm(values, axis=1) / 16).all()


@pytest.mark.parametrize("format_", [Fp8BlockFormat(), Fp8ChannelFormat()])
def test_damaged_weights_are_refused(format_: Fp8BlockFormat | Fp8ChannelFormat) -> None:
    values = gaussian(3, 64)
    values[2, 1] = np.nan
    with pytest.raises(Damaged):
        format_.encode(values)

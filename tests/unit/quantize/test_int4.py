"""INT4 against compressed-tensors' decompression, and the search for its scales."""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.model.floats import Float32
from paceline.quantize.format import Damaged
from paceline.quantize.int4 import Int4Format, search_scales


def gaussian(rows: int, columns: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32)


def squared_error(values: Float32, scales: Float32) -> Float32:
    codes = np.clip(np.rint(values / scales), -8, 7)
    error: Float32 = np.square(codes * scales - values).sum(-1)
    return error


@pytest.mark.parametrize("group", [32, 64, 128])
def test_compressed_tensors_reads_it(group: int) -> None:
    values = gaussian(24, 256)
    encoded = Int4Format(group).encode(values)
    packed, scales = encoded.stored
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)
    found = BaseCompressor.get_value_from_registry("pack-quantized").decompress(
        {
            "weight_packed": torch.from_numpy(packed.view(np.int32)),
            "weight_scale": torch.from_numpy(scales.view(np.int16)).view(torch.bfloat16).float(),
            "weight_shape": torch.tensor(values.shape),
        },
        QuantizationScheme(targets=["Linear"], weights=args),
    )
    assert np.array_equal(found["weight"].numpy(), encoded.values)


def test_nibbles_are_in_the_order_of_the_format() -> None:
    """With -8 and 7 in each group the scale is 1, and words are those that compressed-tensors documents."""
    row = np.concatenate([np.arange(-8, 0), np.arange(8), np.zeros(16)]).astype(np.float32)
    packed, scales = Int4Format(32).encode(row[None]).stored
    assert packed.view("<u4").tolist() == [[0x76543210, 0xFEDCBA98, 0x88888888, 0x88888888]]
    assert scales.view("<u2").tolist() == [[0x3F80]]


def test_ties_go_to_the_even_code() -> None:
    # All the other values are whole numbers, which hold the scale at 1.
    row = np.tile(np.arange(-8, 8), 8).astype(np.float32)
    row[:4] = [0.5, 1.5, -2.5, 3.5]
    encoded = Int4Format(128).encode(row[None])
    assert encoded.stored[1].view("<u2").tolist() == [[0x3F80]]
    assert encoded.values[0, :4].tolist() == [0, 2, -2, 4]


@settings(deadline=None, max_examples=60)
@given(
    codes=st.lists(st.integers(-8, 7), min_size=64, max_size=64),
    exponent=st.integers(-60, 60),
    mantissa=st.integers(128, 255),
)
def test_what_was_int4_already_stays_as_it_is(codes: list[int], exponent: int, mantissa: int) -> None:
    """A group that holds its scale times whole numbers, the largest of which is 7 or 8, loses nothing."""
    codes[0], codes[32] = -8, 7
    scale = np.float32(mantissa / 128 * 2.0**exponent)
    values = np.array([codes], np.float32) * scale
    encoded = Int4Format(32).encode(values)
    assert np.array_equal(encoded.values, values)


@pytest.mark.parametrize(("group", "expected"), [(32, 0.0863), (128, 0.1014)])
def test_errors_of_gaussian_weights(group: int, expected: float) -> None:
    """Better than any scale that the largest magnitude alone gives, and what the comment in the code says."""
    values = gaussian(256, 2048)
    groups = values.reshape(-1, group)
    found = squared_error(groups, search_scales(groups))
    amax = np.abs(groups).max(-1, keepdims=True)
    fixed = np.min([squared_error(groups, amax / np.float32(d)) for d in (7, 8)], axis=0)
    assert found.sum() < 0.95 * fixed.sum()
    decoded = Int4Format(group).encode(values).values
    relative = np.linalg.norm(decoded - values) / np.linalg.norm(values)
    assert relative == pytest.approx(expected, rel=0.01)


def test_a_group_of_zeros_has_a_harmless_scale() -> None:
    values = gaussian(1, 64)
    values[:, :32] = 0
    encoded = Int4Format(32).encode(values)
    assert not encoded.values[:, :32].any()
    assert encoded.stored[1].view("<u2")[0, 0] == 0x3F80
    assert encoded.values[:, 32:].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_damaged_weights_are_refused(bad: float) -> None:
    values = gaussian(3, 64)
    values[1, 40] = bad
    with pytest.raises(Damaged):
        Int4Format(32).encode(values)

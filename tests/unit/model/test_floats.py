"""Codecs against PyTorch's casts, for every bit pattern of the narrow formats and for all kinds of float32."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paceline.model import floats
from paceline.model.floats import Float32

ALL_BYTES = np.arange(256, dtype=np.uint8)
ALL_HALVES = np.arange(65536, dtype=np.uint16)
ANY_FLOATS = arrays(np.uint32, st.integers(1, 64)).map(lambda bits: bits.view(np.float32))


def e4m3(codes: np.ndarray) -> Float32:
    """What PyTorch makes of the codes."""
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def neighbours(values: Float32) -> Float32:
    """`values`, the midpoints between them, and the next float32 on either side of each."""
    finite = np.sort(values[np.isfinite(values)])
    midpoints = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    centres = np.concatenate((finite, midpoints))
    return np.concatenate((centres, np.nextafter(centres, np.inf), np.nextafter(centres, -np.inf)))


def assert_casts_to_e4m3(values: Float32) -> None:
    # Whether a cast saturates depends on the version of PyTorch, so the clamp is explicit.
    expected = torch.from_numpy(values.copy()).clamp(-448, 448).to(torch.float8_e4m3fn).float().numpy()
    found = floats.decode_e4m3(floats.encode_e4m3(values))
    assert np.array_equal(found, expected, equal_nan=True)
    numbers = ~np.isnan(values)
    assert np.array_equal(np.signbit(found)[numbers], np.signbit(values)[numbers])


def test_e4m3_decodes_every_code() -> None:
    assert np.array_equal(
        floats.decode_e4m3(ALL_BYTES.reshape(2, 128)), e4m3(ALL_BYTES).reshape(2, 128), equal_nan=True
    )
    assert np.array_equal(np.signbit(floats.decode_e4m3(ALL_BYTES))[:127], np.zeros(127, bool))
    assert np.signbit(floats.decode_e4m3(ALL_BYTES))[128]


def test_e4m3_decodes_any_shape() -> None:
    """Odd ones and views are decoded one by one, the others in pairs."""
    for codes in (
        ALL_BYTES[:7],
        ALL_BYTES[::2],
        ALL_BYTES[1:9],
        ALL_BYTES.reshape(16, 16)[:, 1:5],
        ALL_BYTES[3],
    ):
        codes = np.asarray(codes)
        found = floats.decode_e4m3(codes)
        assert found.shape == codes.shape
        assert np.array_equal(found, e4m3(ALL_BYTES)[codes], equal_nan=True)


def test_e4m3_encodes_what_it_decodes() -> None:
    assert np.array_equal(floats.encode_e4m3(e4m3(ALL_BYTES)) & 0x7F, ALL_BYTES & 0x7F)
    numbers = ALL_BYTES[(ALL_BYTES & 0x7F) != 0x7F]
    assert np.array_equal(floats.encode_e4m3(e4m3(numbers)), numbers)


def test_e4m3_rounds_to_the_nearest_and_ties_to_even() -> None:
    assert_casts_to_e4m3(neighbours(e4m3(ALL_BYTES)))


def test_e4m3_saturates() -> None:
    codes = floats.encode_e4m3(np.array([448, 464, 1e30, np.inf, -449, -np.inf, np.nan], np.float32))
    assert codes.tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0xFE, 0x7F]


@given(values=ANY_FLOATS)
def test_e4m3_encodes_any_float(values: Float32) -> None:
    assert_casts_to_e4m3(values)


def test_bfloat16_decodes_every_code() -> None:
    expected = torch.from_numpy(ALL_HALVES).view(torch.bfloat16).float().numpy()
    assert np.array_equal(floats.decode_bfloat16(ALL_HALVES), expected, equal_nan=True)
    assert np.array_equal(floats.encode_bfloat16(expected) | 0x40, ALL_HALVES | 0x40)


def assert_casts_to_bfloat16(values: Float32) -> None:
    expected = torch.from_numpy(values.copy()).bfloat16().float().numpy()
    found = floats.decode_bfloat16(floats.encode_bfloat16(values))
    assert np.array_equal(found, expected, equal_nan=True)


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    # Odd and even codes of both signs, small, ordinary and the largest.
    codes = np.concatenate([np.arange(s, s + 40, dtype=np.uint16) for s in (0, 0x3F80, 0x7F58, 0xBF80)])
    assert_casts_to_bfloat16(neighbours(floats.decode_bfloat16(codes)))


@given(values=ANY_FLOATS)
def test_bfloat16_encodes_any_float(values: Float32) -> None:
    assert_casts_to_bfloat16(values)


def test_e2m1_decodes_every_code() -> None:
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    found = floats.decode_e2m1(np.arange(16, dtype=np.uint8))
    assert found.tolist() == positive + [-v for v in positive]
    assert np.signbit(found[8])


def test_e2m1_decodes_every_pair() -> None:
    halves = np.stack((ALL_BYTES & 15, ALL_BYTES >> 4), axis=-1)
    found = floats.decode_e2m1_pairs(ALL_BYTES.reshape(16, 16))
    assert np.array_equal(found, floats.decode_e2m1(halves).reshape(16, 32))


def test_e8m0_decodes_every_code() -> None:
    expected = torch.from_numpy(ALL_BYTES).view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(floats.decode_e8m0(ALL_BYTES), expected, equal_nan=True)
    assert floats.decode_e8m0(np.array([0, 127, 130], np.uint8)).tolist() == [2.0**-127, 1.0, 8.0]

"""Narrow floating-point formats to and from float32: decoding is exact, encoding goes to the nearest, ties to even.

bfloat16   1 sign, 8 exponent, 7 mantissa bits: the upper half of a float32
e4m3fn     1, 4, 3; bias 7; no infinity, 0x7f and 0xff are NaN, largest 448      (OCP 8-bit floating point)
e2m1       1, 2, 1; 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives               (OCP microscaling formats)
e8m0       8 exponent bits; 2**(code - 127), 0xff is NaN                         (OCP microscaling formats)
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UInt8: TypeAlias = npt.NDArray[np.uint8]
UInt16: TypeAlias = npt.NDArray[np.uint16]
Float32: TypeAlias = npt.NDArray[np.float32]

E4M3_MAX = 448.0
"""The largest e4m3fn value."""

_E4M3_NAN = 0x7F
_E4M3_TOP = 0x7E
_E4M3_SMALLEST_NORMAL = np.float32(2**-6)
# A float32 of this size has steps of 2**-9, those of e4m3fn below its smallest normal.
_E4M3_STEPPER = np.float32(2**14)


def decode_bfloat16(bits: UInt16) -> Float32:
    """uint16 of any shape -> float32 of that shape."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def encode_bfloat16(values: Float32) -> UInt16:
    """float32 of any shape -> uint16 of that shape; what is too large becomes infinite, NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # Rounding would carry the mantissa of some NaNs into the sign.
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def decode_e4m3(codes: UInt8) -> Float32:
    """uint8 of any shape -> float32 of that shape."""
    if codes.shape[-1:] == () or codes.shape[-1] % 2:
        return _E4M3.take(codes)
    # Two codes for one look-up: 6.1 -> 1.6 ns per value, measured on a Zen 4 core.
    return _E4M3_PAIRS.take(np.ascontiguousarray(codes).view("<u2")).view(np.float32)


def encode_e4m3(values: Float32) -> UInt8:
    """float32 of any shape -> uint8 of that shape; what lies beyond +-448 becomes +-448, NaN stays NaN."""
    values = np.ascontiguousarray(values)
    bits = values.view(np.uint32)
    magnitude = np.abs(values)
    small = (magnitude + _E4M3_STEPPER).view(np.uint32) - _E4M3_STEPPER.view(np.uint32)
    wide = magnitude.view(np.uint32)
    normal = ((wide + (0x7FFFF + ((wide >> 20) & 1))) >> 20) - ((127 - 7) << 3)
    codes = np.where(magnitude < _E4M3_SMALLEST_NORMAL, small, np.minimum(normal, _E4M3_TOP))
    codes[np.isnan(values)] = _E4M3_NAN
    codes |= (bits >> 24) & 0x80
    return codes.astype(np.uint8)


def decode_e2m1(codes: UInt8) -> Float32:
    """Codes below 16, uint8 of any shape -> float32 of that shape."""
    return _E2M1.take(codes)


def decode_e2m1_pairs(octets: UInt8) -> Float32:
    """Two codes in a byte, the low half first: uint8 [..., n] -> float32 [..., 2 * n]."""
    return _E2M1_PAIRS.take(octets).view(np.float32)


def decode_e8m0(codes: UInt8) -> Float32:
    """uint8 of any shape -> float32 of that shape."""
    return _E8M0.take(codes)


def _table(exponent_bits: int, mantissa_bits: int, bias: int) -> Float32:
    """Values of all codes of a format with a sign, in the order of the codes; none of them infinite or NaN."""
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    significand = np.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa)
    magnitude: Float32 = np.ldexp(
        significand.astype(np.float32), np.maximum(exponent, 1) - bias - mantissa_bits
    )
    magnitude[codes >> (exponent_bits + mantissa_bits) > 0] *= -1
    return magnitude


def _pairs(table: Float32) -> npt.NDArray[np.complex64]:
    """Values of two codes, the first in the low bits of the index; complex is but a type of eight bytes."""
    low, high = np.tile(table, len(table)), np.repeat(table, len(table))
    return np.stack((low, high), axis=1).view(np.complex64)[:, 0]


_E4M3 = _table(exponent_bits=4, mantissa_bits=3, bias=7)
_E4M3[[_E4M3_NAN, 0x80 | _E4M3_NAN]] = np.nan
_E4M3_PAIRS = _pairs(_E4M3)
_E2M1 = _table(exponent_bits=2, mantissa_bits=1, bias=1)
_E2M1_PAIRS = _pairs(_E2M1)
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan))

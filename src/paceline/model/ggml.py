"""The block formats of GGML: each row is cut into blocks of 32 or 256 values that share their scales.

`d` and `m` are float16. Codes narrower than a byte lie in planes: the low bits of a run of bytes are the first values,
the next higher bits of the same bytes the values that follow (`_planes`).

    Q4_0   d | 16 bytes of codes                                                           (q - 8) * d
    Q4_1   d | m | 16 bytes of codes                                                         q * d + m
    Q5_0   d | 4 bytes, bit i is the fifth of value i | 16 bytes of low codes             (q - 16) * d
    Q5_1   d | m | 4 bytes as above | 16 bytes of low codes                                  q * d + m
    Q8_0   d | 32 int8                                                                           q * d
    MXFP4  e8m0 | 16 bytes of e2m1                                                         e2m1 * e8m0

Of 256 values, with a scale `s` and a minimum `n` for each 16 (Q2, Q3, Q6) or 32 (Q4, Q5) of them:

    Q2_K   16 bytes: s low, n high | 64 bytes of codes | d | m                       q * (d s) - (m n)
    Q3_K   32 bytes of third bits | 64 bytes of low codes | 12 bytes of s | d   (q - 4) * (d (s - 32))
    Q4_K   d | m | 12 bytes of s and n | 128 bytes of codes                          q * (d s) - (m n)
    Q5_K   d | m | 12 bytes of s and n | 32 bytes of fifth bits | 128 of low codes   q * (d s) - (m n)
    Q6_K   128 bytes of low codes | 64 bytes of high bits | 16 int8 s | d             (q - 32) * (d s)
    Q8_K   d in float32 | 256 int8 | 16 int16 of sums, which decoding does not need              q * d
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.floats import Float32, UInt8, decode_e2m1, decode_e8m0


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`decode` turns uint8 [blocks, width] into float32 of `values` for each block, in any shape."""

    values: int
    width: int
    decode: Callable[[UInt8], Float32]


def _q4_0(blocks: UInt8) -> Float32:
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _float16(blocks, 0)


def _q4_1(blocks: UInt8) -> Float32:
    return _affine(_nibbles(blocks[:, 4:]), blocks)


def _q5_0(blocks: UInt8) -> Float32:
    values = _five_bits(blocks[:, 2:]).astype(np.float32)
    values -= 16
    values *= _float16(blocks, 0)
    return values


def _q5_1(blocks: UInt8) -> Float32:
    return _affine(_five_bits(blocks[:, 4:]).astype(np.float32), blocks)


def _q8_0(blocks: UInt8) -> Float32:
    return blocks[:, 2:].view(np.int8) * _float16(blocks, 0)


def _mxfp4(blocks: UInt8) -> Float32:
    return decode_e2m1(_planes(blocks[:, 1:], 4, 16)) * decode_e8m0(blocks[:, :1])


def _q2_k(blocks: UInt8) -> Float32:
    scales = _float16(blocks, 80) * (blocks[:, :16] & 15)
    minima = _float16(blocks, 82) * (blocks[:, :16] >> 4)
    return _grouped(_planes(blocks[:, 16:80], 2, 32), scales, minima)


def _q3_k(blocks: UInt8) -> Float32:
    packed = blocks[:, 96:108]
    codes = _planes(packed[:, :8], 4, 8) | _planes(packed[:, 8:], 2, 4) << 4
    scales = _float16(blocks, 108) * (codes.view(np.int8) - 32)
    values = _planes(blocks[:, 32:96], 2, 32) | _planes(blocks[:, :32], 1, 32) << 2
    return _grouped(values.view(np.int8) - 4, scales)


def _q4_k(blocks: UInt8) -> Float32:
    return _grouped(_planes(blocks[:, 16:], 4, 32), *_scales_and_minima(blocks))


def _q5_k(blocks: UInt8) -> Float32:
    codes = _planes(blocks[:, 48:], 4, 32) | _planes(blocks[:, 16:48], 1, 32) << 4
    return _grouped(codes, *_scales_and_minima(blocks))


def _q6_k(blocks: UInt8) -> Float32:
    codes = _planes(blocks[:, :128], 4, 64) | _planes(blocks[:, 128:192], 2, 32) << 4
    scales = _float16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return _grouped(codes.view(np.int8) - 32, scales)


def _q8_k(blocks: UInt8) -> Float32:
    d: Float32 = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return blocks[:, 4:260].view(np.int8) * d


def _float16(blocks: UInt8, offset: int) -> Float32:
    """The float16 at byte `offset` of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> Float32:
    """Both halves of 16 bytes: what `_planes` gives, but made as float32 at once, for the formats most in use."""
    values = np.empty((len(packed), 2, 16), dtype=np.float32)
    np.bitwise_and(packed, 15, out=values[:, 0], casting="unsafe")
    np.right_shift(packed, 4, out=values[:, 1], casting="unsafe")
    return values.reshape(-1, 32)


def _planes(packed: UInt8, bits: int, run: int) -> UInt8:
    """Codes of `bits` bits from uint8 [blocks, n * run]: of each run all lowest codes, then all next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes = packed.reshape(len(packed), -1, 1, run) >> shifts
    codes &= (1 << bits) - 1
    return codes.reshape(len(packed), -1)


def _five_bits(packed: UInt8) -> UInt8:
    """uint8 [blocks, 4 + 16] -> uint8 [blocks, 32]"""
    fifth: UInt8 = np.unpackbits(packed[:, :4], axis=1, bitorder="little")
    return _planes(packed[:, 4:], 4, 16) | fifth << np.uint8(4)


def _affine(values: Float32, blocks: UInt8) -> Float32:
    values *= _float16(blocks, 0)
    values += _float16(blocks, 2)
    return values


def _scales_and_minima(blocks: UInt8) -> tuple[Float32, Float32]:
    """d s and m n of Q4_K and Q5_K, float32 [blocks, 8].

    s and n have six bits: the first four of each lie in the low bits of bytes 0-3 and 4-7, the others have their low
    bits in the halves of bytes 8-11, their high bits on top of the first ones.
    """
    first_s, first_n, low = (blocks[:, i : i + 4] for i in (4, 8, 12))
    s = np.concatenate((first_s & 63, low & 15 | first_s >> 6 << 4), axis=1)
    n = np.concatenate((first_n & 63, low >> 4 | first_n >> 6 << 4), axis=1)
    return _float16(blocks, 0) * s, _float16(blocks, 2) * n


def _grouped(
    codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8], scales: Float32, minima: Float32 | None = None
) -> Float32:
    """codes [blocks, 256] * scales - minima, each float32 [blocks, groups]"""
    values: Float32 = codes.reshape(*scales.shape, -1) * scales[..., None]
    if minima is not None:
        values -= minima[..., None]
    return values


BLOCK_FORMATS = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "MXFP4": BlockFormat(32, 17, _mxfp4),
    "Q2_K": BlockFormat(256, 84, _q2_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    "Q8_K": BlockFormat(256, 292, _q8_k),
}

"""Eight 4-bit codes in an int32: element i in bits 4 * i, the order of compressed-tensors and of the kernels."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.model.floats import UInt8

Int32: TypeAlias = npt.NDArray[np.int32]


def unpack(words: Int32) -> UInt8:
    """int32 [..., n] -> uint8 [..., 8 * n] below 16"""
    octets = np.ascontiguousarray(words, "<i4").view(np.uint8)
    codes = np.empty((*octets.shape, 2), np.uint8)
    np.bitwise_and(octets, 15, out=codes[..., 0])
    np.right_shift(octets, 4, out=codes[..., 1])
    return codes.reshape(*words.shape[:-1], -1)


def pack(codes: UInt8) -> Int32:
    """uint8 [..., 8 * n] below 16 -> int32 [..., n]"""
    octets: UInt8 = np.left_shift(codes[..., 1::2], 4, order="C")
    octets |= codes[..., ::2]
    return octets.view("<i4")


def transpose(words: Int32) -> Int32:
    """int32 [8, ...] -> int32 [8, ...]: code j of word i becomes code i of word j, for each of the places behind."""
    swapped = words.view(np.uint32).copy()
    # As one transposes a matrix of bits: squares of 4 x 4 codes change places, then of 2 x 2 in each, then single ones.
    for distance, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        halves = swapped.reshape(-1, 2, distance, *words.shape[1:])
        one, other = halves[:, 0], halves[:, 1]
        difference = (one >> 4 * distance ^ other) & np.uint32(mask)
        other ^= difference
        one ^= difference << 4 * distance
    return swapped.view(np.int32)

"""One tensor as its file holds it, and the arithmetic from any storage format to float32.

Block formats cut each row into blocks of 32 values, ``d`` and ``m`` in float16:

    Q4_0   d | 16 bytes: value i in the low half of byte i, value 16 + i in the high half       (q - 8) * d
    Q4_1   d | m | 16 bytes as above                                                          q * d + m
    Q8_0   d | 32 int8                                                                          q * d
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

UInt8: TypeAlias = npt.NDArray[np.uint8]
Float32: TypeAlias = npt.NDArray[np.float32]

ROW_FORMATS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
}
"""Values and bytes of one block."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`data` is a read-only view, uint8 [rows, bytes per row]; `shape` is row-major, a vector is one row.

    `row_order` lists the rows of `data` in the order in which they are meant, where the file has another.
    """

    dtype: str
    shape: tuple[int, ...]
    data: UInt8
    row_order: npt.NDArray[np.int64] | None = None

    def raw(self, start: int, stop: int) -> UInt8:
        """Stored bytes of rows `start:stop`, uint8 [rows, bytes per row]."""
        return self.data[start:stop] if self.row_order is None else self.data[self.row_order[start:stop]]

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, columns]."""
        raw = self.raw(start, stop)
        return _DECODERS[self.dtype](np.ascontiguousarray(raw)).reshape(len(raw), -1)


def _f32(raw: UInt8) -> Float32:
    return raw.view("<f4")


def _f16(raw: UInt8) -> Float32:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: UInt8) -> Float32:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(raw: UInt8) -> Float32:
    blocks = raw.reshape(-1, 18)
    return (_nibbles(blocks[:, 2:]) - np.float32(8)) * _scale(blocks, 0)


def _q4_1(raw: UInt8) -> Float32:
    blocks = raw.reshape(-1, 20)
    values = _nibbles(blocks[:, 4:])
    values *= _scale(blocks, 0)
    values += _scale(blocks, 2)
    return values


def _q8_0(raw: UInt8) -> Float32:
    blocks = raw.reshape(-1, 34)
    return blocks[:, 2:].view(np.int8) * _scale(blocks, 0)


def _scale(blocks: UInt8, offset: int) -> Float32:
    """The float16 at byte `offset` of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> Float32:
    values = np.empty((len(packed), 2, 16), dtype=np.float32)
    np.bitwise_and(packed, 15, out=values[:, 0], casting="unsafe")
    np.right_shift(packed, 4, out=values[:, 1], casting="unsafe")
    return values.reshape(-1, 32)


_DECODERS: dict[str, Callable[[UInt8], Float32]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}

"""One tensor as its file holds it, and the arithmetic from any storage format to float32."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.model.floats import Float32, UInt8, decode_bfloat16
from paceline.model.ggml import BLOCK_FORMATS

ROW_FORMATS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    **{name: (block.values, block.width) for name, block in BLOCK_FORMATS.items()},
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

    @property
    def storage(self) -> str:
        """How the file holds it, in words."""
        return self.dtype

    @property
    def arrays(self) -> tuple[UInt8]:
        """Views of the file."""
        return (self.data,)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.data.nbytes

    def raw(self, start: int, stop: int) -> UInt8:
        """Stored bytes of rows `start:stop`, uint8 [rows, bytes per row]."""
        return self.data[start:stop] if self.row_order is None else self.data[self.row_order[start:stop]]

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, columns]."""
        raw = np.ascontiguousarray(self.raw(start, stop))
        if (block := BLOCK_FORMATS.get(self.dtype)) is None:
            return _DECODERS[self.dtype](raw)
        return block.decode(raw.reshape(-1, block.width)).reshape(len(raw), -1)


def _f32(raw: UInt8) -> Float32:
    return raw.view("<f4")


def _f16(raw: UInt8) -> Float32:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: UInt8) -> Float32:
    return decode_bfloat16(raw.view("<u2"))


_DECODERS: dict[str, Callable[[UInt8], Float32]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}

"""What makes the tensors of a checkpoint, cut into pieces that take little memory and can run at the same time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import encode_bfloat16
from paceline.quantize.errors import NO_ERRORS, Errors
from paceline.quantize.format import Damaged, Float32, Format, UInt8
from paceline.quantize.tensors import OutputTensor

# Values of one piece, 1 MB in float32: a few such arrays are alive in each thread, and stay in its processor's cache.
_PIECE = 1 << 18
_COPIED = 16 << 20


Writer: TypeAlias = Callable[[str, int, UInt8], None]
"""Called with a tensor's name, an offset in it in bytes, and the bytes that belong there. Raises `OSError`."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a piece made of `source_bytes` of the source."""

    source_bytes: int
    errors: Errors = NO_ERRORS


Piece: TypeAlias = Callable[[Writer], Done]
"""Raises `InvalidRequest` for weights that cannot be stored, and what the writer raises."""


class Work(Protocol):
    """Everything that is stored in place of one tensor or matrix of the source."""

    @property
    def module(self) -> str: ...

    @property
    def source_bytes(self) -> int: ...

    @property
    def outputs(self) -> tuple[OutputTensor, ...]: ...

    def pieces(self) -> Iterator[Piece]: ...


class Matrix(Protocol):
    """A stored matrix [out, in], of which some rows at a time can be had in float32."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def float32(self, start: int, stop: int) -> Float32: ...


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor that stays as it is; `data` are all of its bytes."""

    module: str
    output: OutputTensor
    data: UInt8

    @property
    def source_bytes(self) -> int:
        return self.data.nbytes

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        return (self.output,)

    def pieces(self) -> Iterator[Piece]:
        for start in range(0, self.data.nbytes, _COPIED):
            yield partial(self._copy, start)

    def _copy(self, start: int, write: Writer) -> Done:
        data = self.data[start : start + _COPIED]
        write(self.output.name, start, data)
        return Done(data.nbytes)


@dataclass(frozen=True, slots=True)
class Widen:
    """A matrix that the source holds in another form, FP8 or all experts in one, and that is stored in bfloat16."""

    module: str
    matrix: Matrix

    @property
    def source_bytes(self) -> int:
        return self.matrix.nbytes

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        return (OutputTensor(f"{self.module}.weight", "BF16", self.matrix.shape),)

    def pieces(self) -> Iterator[Piece]:
        for start, stop in _rows(self.matrix, 1):
            yield partial(self._widen, start, stop)

    def _widen(self, start: int, stop: int, write: Writer) -> Done:
        (output,) = self.outputs
        bits = encode_bfloat16(self.matrix.float32(start, stop)).astype("<u2", copy=False)
        write(output.name, start * output.row_bytes, bits.view(np.uint8))
        return Done(_share(self.matrix, start, stop))


@dataclass(frozen=True, slots=True)
class Quantize:
    """A matrix that is stored in `format`; `source` names file and tensor in errors."""

    module: str
    matrix: Matrix
    format: Format
    source: str

    @property
    def source_bytes(self) -> int:
        return self.matrix.nbytes

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        parts = (part.tensor for part in self.format.parts(self.module, self._shape))
        constants = (tensor for tensor, _ in self.format.constants(self.module, self._shape))
        return (*parts, *constants)

    def pieces(self) -> Iterator[Piece]:
        yield self._constants
        for start, stop in _rows(self.matrix, self.format.block_rows):
            yield partial(self._quantize, start, stop)

    @property
    def _shape(self) -> tuple[int, int]:
        rows, columns = self.matrix.shape
        return rows, columns

    def _constants(self, write: Writer) -> Done:
        for tensor, data in self.format.constants(self.module, self._shape):
            write(tensor.name, 0, np.frombuffer(data, np.uint8))
        return Done(0)

    def _quantize(self, start: int, stop: int, write: Writer) -> Done:
        original = self.matrix.float32(start, stop)
        try:
            encoded = self.format.encode(original)
        except Damaged as e:
            raise InvalidRequest(f"{self.source} holds {e} in rows {start} to {stop - 1}") from e
        for part, stored in zip(self.format.parts(self.module, self._shape), encoded.stored, strict=True):
            write(part.tensor.name, start // part.rows * part.tensor.row_bytes, stored)
        return Done(_share(self.matrix, start, stop), Errors.between(original, encoded.values))


def _rows(matrix: Matrix, block: int) -> Iterator[tuple[int, int]]:
    """Rows from and to, for each piece of a matrix; each begins at a multiple of `block`."""
    rows, columns = matrix.shape
    step = max(_PIECE // columns // block, 1) * block
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _share(matrix: Matrix, start: int, stop: int) -> int:
    """Bytes of rows `start:stop`; over a whole matrix they add up to all of it."""
    rows = matrix.shape[0]
    return matrix.nbytes * stop // rows - matrix.nbytes * start // rows

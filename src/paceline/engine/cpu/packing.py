"""Stored matrices into packed memory: native code converts some rows at a time, in several threads."""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu.library import PlFormat
from paceline.engine.interface import Progress
from paceline.model.floats import Float32
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.stored import StoredTensor

Packable: TypeAlias = StoredTensor | Int4Matrix
_Arrays: TypeAlias = tuple[npt.NDArray[Any], ...]

_BLOCK_ROWS = 16
_ALIGNMENT = 64
# Packed bytes that a thread makes at a time: two threads then end together even on one large matrix.
_PIECE = 1 << 20


class PlStored(IntEnum):
    """How a file stores a matrix; native/pack_source.h. Names are those of `StoredTensor.dtype`."""

    Q4_0 = 0
    Q4_1 = 1
    Q5_0 = 2
    Q5_1 = 3
    Q8_0 = 4
    MXFP4 = 5
    Q2_K = 6
    Q3_K = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    Q8_K = 11
    INT4 = 12
    F32 = 13
    F16 = 14
    BF16 = 15


class PlSource(Structure):
    """Rows in a file; native/pack_source.h."""

    _fields_ = (
        ("stored", c_int32),
        ("group", c_int32),
        ("data", c_void_p),
        ("stride", c_int64),
        ("order", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("importance", c_void_p),
    )


class Memory:
    """Zeroed memory of one allocation, which begins at a page. It is freed with the last reference to this."""

    def __init__(self, size: int) -> None:
        # Private: what Python maps by default is shared memory, for which Linux has no large pages. A Zen 3 core reads
        # 21.8 GB/s from large ones and 18.3 GB/s from small ones.
        self._map = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.size = size

    def array(self, offset: int, count: int) -> npt.NDArray[np.float32]:
        """A view, float32 [count]."""
        return np.frombuffer(self._map, np.float32, count, offset)


class Arena:
    """Hands out places, each at the beginning of a cache line, in memory that is yet to be allocated."""

    def __init__(self) -> None:
        self.size = 0

    def place(self, size: int) -> int:
        """The offset of `size` bytes."""
        offset = self.size
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        return offset


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix, what it is to be packed as, and where: an offset from the beginning of the memory.

    `importance`, float32 [columns], is what errors of each column count where codes are searched; None: all alike.
    """

    name: str
    stored: Packable
    format: PlFormat
    offset: int
    importance: Float32 | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    matrix: Placed
    start: int
    stop: int


class Packer:
    """The functions of native/pack.h."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._size = library.pl_packed_bytes
        self._size.restype, self._size.argtypes = c_int64, (c_int32, c_int32, c_int32)
        self._pack = library.pl_pack
        self._pack.restype = c_int32
        self._pack.argtypes = (POINTER(PlSource), c_int32, c_int32, c_int32, c_void_p)

    def size(self, format_: PlFormat, rows: int, columns: int) -> int:
        """Bytes of a packed matrix."""
        return int(self._size(format_, rows, columns))

    def pack(self, matrices: Sequence[Placed], memory: Memory, threads: int, progress: Progress) -> None:
        """Fill the places of `matrices` in `memory`. Pages of their files are given back as soon as they are read.

        Raises `InvalidRequest`, naming the tensor, when values that are to be quantised are not finite.
        """
        total, done = sum(m.stored.nbytes for m in matrices), 0
        with ThreadPoolExecutor(threads, thread_name_prefix="pack") as pool:
            pieces = [piece for matrix in matrices for piece in self._pieces(matrix)]
            run = pool.map(lambda piece: self._run(piece, memory.address), pieces)
            for piece, _ in zip(pieces, run, strict=True):
                stored = piece.matrix.stored
                done += stored.nbytes * (piece.stop - piece.start) // stored.shape[0]
                progress(min(done, total), total)
        progress(total, total)

    def _pieces(self, matrix: Placed) -> Iterator[_Piece]:
        rows, columns = matrix.stored.shape
        blocks = max(1, _PIECE // self.size(matrix.format, _BLOCK_ROWS, columns))
        for start in range(0, rows, blocks * _BLOCK_ROWS):
            yield _Piece(matrix, start, min(rows, start + blocks * _BLOCK_ROWS))

    def _run(self, piece: _Piece, base: int) -> None:
        matrix, start, rows = piece.matrix, piece.start, piece.stop - piece.start
        stored, (_, columns) = matrix.stored, matrix.stored.shape
        target = base + matrix.offset + self.size(matrix.format, start, columns)
        source, kept = (
            _int4_source(stored, start, rows)
            if isinstance(stored, Int4Matrix)
            else _tensor_source(stored, start, rows)
        )
        if matrix.importance is not None:
            source.importance = _address(matrix.importance)
        answer = self._pack(source, matrix.format, rows, columns, target)
        if answer == 1:
            raise InvalidRequest(
                f"{matrix.name} has values that are not finite or too large, for which there are no integers"
            )
        if answer != 0:
            raise ValueError(f"{matrix.name}, stored as {stored.storage}, cannot become {matrix.format.name}")
        if isinstance(stored, StoredTensor) and stored.row_order is None:
            _give_back(kept[0])


def _tensor_source(stored: StoredTensor, start: int, rows: int) -> tuple[PlSource, _Arrays]:
    """Where the rows are, and the arrays that hold them."""
    order = stored.row_order
    own = stored.data[start : start + rows] if order is None else stored.data
    source = PlSource(
        stored=PlStored[stored.dtype],
        data=_address(own),
        stride=own.strides[0],
        order=None if order is None else _address(order[start:]),
    )
    return source, (own,)


def _int4_source(stored: Int4Matrix, start: int, rows: int) -> tuple[PlSource, _Arrays]:
    block = stored.read(start, start + rows)
    words = np.ascontiguousarray(block.packed, "<i4")
    scales = np.ascontiguousarray(block.scales)
    zeros = None if block.zeros is None else np.ascontiguousarray(block.zeros)
    source = PlSource(
        stored=PlStored.INT4,
        group=stored.group,
        data=_address(words),
        stride=words.strides[0],
        scales=_address(scales),
        zeros=None if zeros is None else _address(zeros),
    )
    return source, (words, scales) if zeros is None else (words, scales, zeros)


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _give_back(rows: npt.NDArray[np.uint8]) -> None:
    """Unmap the pages of `rows` where they are those of a file, which stays in the page cache."""
    base: Any = rows
    while isinstance(base, np.ndarray):
        base = base.base
    mapping = base.obj if isinstance(base, memoryview) else base
    if not isinstance(mapping, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = _address(rows) - _address(np.frombuffer(mapping, np.uint8))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, length)

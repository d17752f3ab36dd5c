"""GGUF, read by mapping it: metadata now, tensors as views of the file.

    file    = "GGUF" | version u32 (2, 3) | tensors u64 | pairs u64 | pair * | tensor * | padding | data
    pair    = key string | type u32 | value            string = length u64 | UTF-8
    tensor  = name string | dimensions u32 | size u64 * | type u32 | offset u64 from the data's start

All little-endian. Every length is checked against the file before anything of that length is made, so that a
truncated or hostile file is an `InvalidRequest`. Arrays of strings (a vocabulary has 50,000 and more) are only
measured until somebody asks for them.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest
from paceline.model.stored import ROW_FORMATS, StoredTensor

_TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    30: "BF16",
    39: "MXFP4",
}
_SCALARS = {
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING = 8
_ARRAY = 9
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class StringArray:
    """Strings that are still bytes in the file, from `start` on."""

    count: int
    start: int


Value: TypeAlias = bool | int | float | str | StringArray | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's row-major shape, GGUF type number and first byte in the file."""

    shape: tuple[int, ...]
    type_id: int
    start: int


class GgufFile:
    """An open file; views keep the mapping alive, so there is nothing to close."""

    def __init__(self, path: Path) -> None:
        """Raises `InvalidRequest` when `path` is no whole GGUF file of version 2 or 3."""
        self.path = path
        try:
            with path.open("rb") as f:
                self._data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:
            raise InvalidRequest(f"{path} cannot be read: {e}") from e
        try:
            parser = _Parser(self._data)
            self.metadata: Mapping[str, Value] = parser.metadata
            self.tensors: Mapping[str, TensorInfo] = parser.tensors
        except (struct.error, UnicodeDecodeError, _Malformed) as e:
            raise InvalidRequest(f"{path} is damaged or no GGUF file: {e}") from e

    def strings(self, key: str) -> list[str]:
        """The strings of an array. Raises `InvalidRequest` when there is no such array."""
        value = self.metadata.get(key)
        if not isinstance(value, StringArray):
            raise InvalidRequest(f"{self.path}: {key} is missing or no array of strings")
        data, offset, found = self._data, value.start, []
        try:
            for _ in range(value.count):
                end = offset + 8 + _U64.unpack_from(data, offset)[0]
                found.append(data[offset + 8 : end].decode())
                offset = end
        except UnicodeDecodeError as e:
            raise InvalidRequest(f"{self.path}: {key} is not UTF-8: {e}") from e
        return found

    def integers(self, key: str) -> list[int]:
        """The numbers of an array. Raises `InvalidRequest` when there is no such array."""
        value = self.metadata.get(key)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            raise InvalidRequest(f"{self.path}: {key} is missing or no array of whole numbers")
        return [int(v) for v in value.tolist()]

    def tensor(self, name: str) -> StoredTensor:
        """A tensor's bytes. Raises `InvalidRequest` when it is absent, cut off, or of a type that is not supported."""
        if (info := self.tensors.get(name)) is None:
            raise InvalidRequest(f"{self.path}: tensor {name} is missing")
        if (kind := _TENSOR_TYPES.get(info.type_id)) is None:
            known = ", ".join(_TENSOR_TYPES.values())
            raise InvalidRequest(
                f"{self.path}: tensor {name} has type {info.type_id}, which is none of {known}"
            )
        items, width = ROW_FORMATS[kind]
        if info.shape[-1] % items:
            raise InvalidRequest(
                f"{self.path}: tensor {name} has rows of {info.shape[-1]}, no multiple of {items}"
            )
        rows, row_bytes = prod(info.shape[:-1]), info.shape[-1] // items * width
        if info.start + rows * row_bytes > len(self._data):
            raise InvalidRequest(f"{self.path} is truncated: tensor {name} ends behind the file")
        data = np.frombuffer(self._data, np.uint8, rows * row_bytes, info.start).reshape(rows, row_bytes)
        return StoredTensor(kind, info.shape, data)


class _Malformed(Exception):
    """The bytes break the format; the message says how."""


class _Parser:
    """Walks the header once. `struct` checks the bounds of numbers, `_skip` those of everything else."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0
        if data[:4] != b"GGUF":
            raise _Malformed("it does not begin with GGUF")
        self._offset = 4
        if (version := self._u32()) not in (2, 3):
            raise _Malformed(f"version {version} is neither 2 nor 3")
        tensors, pairs = self._u64(), self._u64()
        self.metadata = dict(self._pair() for _ in range(pairs))
        infos = [self._tensor() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or not 1 <= alignment <= 2**20:
            raise _Malformed(f"alignment {alignment!r:.40}")
        base = -(-self._offset // alignment) * alignment
        self.tensors = {name: TensorInfo(shape, kind, base + offset) for name, shape, kind, offset in infos}
        if len(self.tensors) != len(infos):
            raise _Malformed("two tensors have one name")

    def _pair(self) -> tuple[str, Value]:
        key = self._string()
        return key, self._value(self._u32())

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise _Malformed(f"tensor {name:.60} has {dimensions} dimensions")
        # GGUF counts from the fastest dimension on.
        shape = tuple(self._u64() for _ in range(dimensions))[::-1]
        kind, offset = self._u32(), self._u64()
        if not all(1 <= n < 2**40 for n in shape) or self._offset + offset > len(self._data):
            raise _Malformed(f"tensor {name:.60} of shape {shape} at {offset} lies outside the file")
        return name, shape, kind, offset

    def _value(self, kind: int) -> Value:
        if kind in _SCALARS:
            value: bool | int | float = self._array(kind, 1)[0].item()
            return value
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise _Malformed(f"value of unknown type {kind}")
        kind, count = self._u32(), self._u64()
        if kind in _SCALARS:
            return self._array(kind, count)
        if kind != _STRING:
            raise _Malformed(f"array of type {kind}")
        return self._strings(count)

    def _array(self, kind: int, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        start = self._skip(count * dtype.itemsize)
        return np.frombuffer(self._data, dtype, count, start)

    def _strings(self, count: int) -> StringArray:
        start = offset = self._offset
        data, end, unpack = self._data, len(self._data), _U64.unpack_from
        for _ in range(count):
            offset += 8 + unpack(data, offset)[0]
            if offset > end:
                raise _Malformed("a string ends behind the file")
        self._offset = offset
        return StringArray(count, start)

    def _string(self) -> str:
        length = self._u64()
        start = self._skip(length)
        return self._data[start : start + length].decode()

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._data, self._offset)[0]
        self._offset += 4
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._data, self._offset)[0]
        self._offset += 8
        return value

    def _skip(self, count: int) -> int:
        """Step over `count` bytes that must be there; gives where they begin."""
        start = self._offset
        if count > len(self._data) - start:
            raise _Malformed(f"{count} bytes at {start} end behind the file")
        self._offset = start + count
        return start

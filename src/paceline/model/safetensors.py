"""Safetensors, read by mapping them: the headers now, tensors as views of the files.

file = header length u64, little-endian | header JSON {name: {dtype, shape, data_offsets}} | data
"""

import json
import mmap
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest
from paceline.model.fields import read_json
from paceline.model.stored import ROW_FORMATS, StoredTensor

_INDEX = "model.safetensors.index.json"
_FLOATS = ("F32", "F16", "BF16")
# What numpy has no type for is read as the bits.
_ARRAYS = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I8": "i1",
    "U8": "u1",
}
# The limit of the format's own library.
_MAX_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """`start` and `stop` count from the beginning of the file."""

    path: Path
    file: mmap.mmap
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A tensor as numpy sees it: a read-only view in its shape, the bits where numpy has no such type."""

    path: Path
    name: str
    dtype: str
    values: npt.NDArray[Any]

    def require(self, shape: tuple[int, ...], *dtypes: str) -> npt.NDArray[Any]:
        """`values`. Raises `InvalidRequest` unless they have this shape and one of these types."""
        if self.dtype not in dtypes:
            raise self.refuse(f"has type {self.dtype}, expected {' or '.join(dtypes)}")
        if self.values.shape != shape:
            raise self.refuse(f"has shape {self.values.shape}, expected {shape}")
        return self.values

    def refuse(self, reason: str) -> InvalidRequest:
        """The error to raise for this tensor."""
        return InvalidRequest(f"{self.path}: tensor {self.name} {reason}")


class SafetensorsDirectory:
    """All tensors of a model, in one file or several shards; views keep the mappings alive."""

    def __init__(self, directory: Path) -> None:
        """Raises `InvalidRequest` for files that are missing or damaged, or that hold a tensor twice."""
        self.path = directory
        self._entries: dict[str, _Entry] = {}
        index = _read_index(directory)
        for path in sorted(set(index.values()) or directory.glob("*.safetensors")):
            for name, entry in _read_header(path).items():
                self._add(name, entry, index.get(name))

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors, in the order of the files."""
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def dtype(self, name: str) -> str | None:
        """The type of a tensor in the format's words, None when it is absent."""
        entry = self._entries.get(name)
        return None if entry is None else entry.dtype

    def tensor(self, name: str) -> StoredTensor:
        """A tensor's bytes. Raises `InvalidRequest` when it is absent, cut off, or neither F32, F16 nor BF16."""
        entry = self._entry(name, _FLOATS)
        rows, row_bytes = prod(entry.shape[:-1]), prod(entry.shape[-1:]) * ROW_FORMATS[entry.dtype][1]
        data = _bytes(name, entry, rows * row_bytes).reshape(rows, row_bytes)
        return StoredTensor(entry.dtype, entry.shape, data)

    def array(self, name: str) -> StoredArray:
        """A tensor of any type below. Raises `InvalidRequest` when it is absent, cut off or of another type.

        F32, F16, I64, I32, I8, U8 are arrays of these; BF16 is uint16, F8_E4M3 and F8_E8M0 are uint8.
        """
        entry = self._entry(name, tuple(_ARRAYS))
        dtype = np.dtype(_ARRAYS[entry.dtype])
        data = _bytes(name, entry, prod(entry.shape) * dtype.itemsize)
        # Files may begin a tensor at any byte, and what follows is entitled to aligned numbers.
        values = data.view(dtype) if data.ctypes.data % dtype.itemsize == 0 else data.copy().view(dtype)
        return StoredArray(entry.path, name, entry.dtype, values.reshape(entry.shape))

    def _add(self, name: str, entry: _Entry, indexed: Path | None) -> None:
        """Of two files with a tensor `name`, that in the index counts."""
        other = self._entries.get(name)
        if other is None or entry.path == indexed:
            self._entries[name] = entry
        elif other.path != indexed:
            raise InvalidRequest(f"{entry.path}: tensor {name} is in {other.path.name} too")

    def _entry(self, name: str, dtypes: tuple[str, ...]) -> _Entry:
        if (entry := self._entries.get(name)) is None:
            raise InvalidRequest(f"{self.path}: tensor {name} is missing")
        if entry.dtype not in dtypes:
            raise InvalidRequest(
                f"{entry.path}: tensor {name} has type {entry.dtype}, none of {', '.join(dtypes)}"
            )
        return entry


def _bytes(name: str, entry: _Entry, size: int) -> npt.NDArray[np.uint8]:
    if entry.stop - entry.start != size or entry.stop > len(entry.file):
        raise InvalidRequest(f"{entry.path} is truncated or damaged: tensor {name} does not fit")
    return np.frombuffer(entry.file, np.uint8, size, entry.start)


def _read_index(directory: Path) -> dict[str, Path]:
    """The file of each tensor; empty without an index."""
    index = directory / _INDEX
    if not index.exists():
        return {}
    files = read_json(index).section("weight_map").texts()
    if any(Path(file).name != file for file in files.values()):
        raise InvalidRequest(f"{index} names files outside its directory")
    return {name: directory / file for name, file in files.items()}


def _read_header(path: Path) -> dict[str, _Entry]:
    try:
        with path.open("rb") as f:
            file = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from e
    length = int.from_bytes(file[:8], "little")
    if len(file) < 8 or length > min(_MAX_HEADER, len(file) - 8):
        raise InvalidRequest(f"{path} is damaged or no safetensors file")
    try:
        header = json.loads(file[8 : 8 + length])
    except (ValueError, RecursionError) as e:
        raise InvalidRequest(f"{path} is damaged or no safetensors file: {e}") from e
    if not isinstance(header, dict):
        raise InvalidRequest(f"{path} is damaged or no safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    return {name: _parse_entry(path, file, name, fields, 8 + length) for name, fields in header.items()}


def _parse_entry(path: Path, file: mmap.mmap, name: str, fields: object, base: int) -> _Entry:
    match fields:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop]} if (
            # A name with half of a surrogate pair cannot be printed or written.
            name.isprintable() and all(type(n) is int and n >= 0 for n in (*shape, start, stop))
        ):
            return _Entry(path, file, dtype, tuple(shape), base + start, base + stop)
        case _:
            raise InvalidRequest(
                f"{path} is damaged: tensor {name!r:.80} is {reprlib.repr(fields)}, not dtype, shape and data_offsets"
            )

"""A tensor of a safetensors file that is to be written, and the header that lists them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

ITEM_BYTES = {
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "F16": 2,
    "BF16": 2,
    "I8": 1,
    "U8": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
}
"""Bytes of one item, by safetensors' name of its type."""


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """`dtype` is one of `ITEM_BYTES`; `shape` is row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension."""
        return prod(self.shape[1:]) * ITEM_BYTES[self.dtype]


def lay_out(tensors: Sequence[OutputTensor]) -> tuple[bytes, dict[str, int]]:
    """The file's header, and where in the file the data of each tensor, by name, begins.

    Wide types come first, so that every tensor is aligned to its items.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets = {}
    end = 0
    for tensor in sorted(tensors, key=lambda t: -ITEM_BYTES[t.dtype]):
        offsets[tensor.name] = end
        end += tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offsets[tensor.name], end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + offset for name, offset in offsets.items()}

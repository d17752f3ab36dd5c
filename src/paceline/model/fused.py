"""Experts whose matrices lie in one tensor [experts, in, out], as Llama 4 and gpt-oss keep them.

The columns of `gate_up_proj` are those of the gate and those of up, in halves (Llama 4) or by turns (gpt-oss, whose
layers use them so).
"""

import re
from dataclasses import dataclass

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import Float32, UInt8
from paceline.model.safetensors import SafetensorsDirectory
from paceline.model.stored import StoredTensor

_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<expert>\d+)\.(?P<module>\w+)\.(?P<kind>weight|bias)")
_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


@dataclass(frozen=True, slots=True)
class TransposedTensor:
    """A matrix [out, in] whose file has [in, out]: `data` is uint8 [in, bytes of the outputs], read-only."""

    dtype: str
    shape: tuple[int, int]
    data: UInt8

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.data.nbytes

    def raw(self, start: int, stop: int) -> UInt8:
        """Stored bytes of rows `start:stop`, uint8 [rows, bytes per row]."""
        width = self.data.shape[1] // self.shape[0]
        columns = np.ascontiguousarray(self.data[:, start * width : stop * width]).view(f"u{width}")
        return np.ascontiguousarray(columns.T).view(np.uint8)

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, columns]."""
        rows = StoredTensor(self.dtype, (stop - start, self.shape[1]), self.raw(start, stop))
        return rows.float32(0, stop - start)


def open_expert(
    source: SafetensorsDirectory, name: str, shape: tuple[int, ...]
) -> StoredTensor | TransposedTensor | None:
    """The tensor `name` of one expert out of those of all; None when it is not of an expert, or not stored so.

    Raises `InvalidRequest` when the tensor of all experts does not hold one of `shape`.
    """
    if name in source or (match := _EXPERT.fullmatch(name)) is None:
        return None
    module, expert = match["module"], int(match["expert"])
    fused = f"{match['experts']}.{_FUSED.get(module, module)}" + ("_bias" if match["kind"] == "bias" else "")
    if fused not in source:
        return None
    stored = source.tensor(fused)
    halves = 2 if module in _FUSED else 1
    expected = (shape[0] * halves,) if len(shape) == 1 else (shape[1], shape[0] * halves)
    if stored.shape[1:] != expected or expert >= stored.shape[0]:
        raise InvalidRequest(
            f"{source.path}: tensor {fused} has shape {stored.shape}, expected {expected} of expert {expert}"
        )
    rows = len(stored.data) // stored.shape[0]
    own = stored.data[expert * rows : (expert + 1) * rows]
    half = own.shape[1] // halves
    first = half if module == "up_proj" else 0
    own = own[:, first : first + half]
    if len(shape) == 1:
        return StoredTensor(stored.dtype, shape, own)
    return TransposedTensor(stored.dtype, (shape[0], shape[1]), own)

"""Experts whose matrices lie in one tensor [experts, in, out], as Llama 4 and gpt-oss keep them.

The columns of `gate_up_proj` are those of the gate and those of up, in halves (Llama 4) or by turns (gpt-oss, whose
layers use them so).
"""

import re
from dataclasses import dataclass

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import Float32, UInt8
from paceline.model.quantized.fp4 import Fp4Matrix
from paceline.model.quantized.matrices import open_experts
from paceline.model.quantized.scheme import Scheme
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
    def storage(self) -> str:
        """How the file holds it, in words."""
        return f"{self.dtype} transposed"

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
        width = self.data.shape[1] // self.shape[0]
        columns = np.ascontiguousarray(self.data[:, start * width : stop * width]).view(f"u{width}")
        return np.ascontiguousarray(columns.T).view(np.uint8)

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, columns]."""
        rows = StoredTensor(self.dtype, (stop - start, self.shape[1]), self.raw(start, stop))
        return rows.float32(0, stop - start)


class FusedExperts:
    """Experts of `source` whose tensors hold those of a whole layer."""

    def __init__(self, source: SafetensorsDirectory, scheme: Scheme | None) -> None:
        self._source = source
        self._scheme = scheme
        self._quantised: dict[str, list[Fp4Matrix]] = {}

    def open(self, name: str, shape: tuple[int, ...]) -> StoredTensor | TransposedTensor | Fp4Matrix | None:
        """The tensor `name` of one expert out of those of all; None when it is not of an expert, or not stored so.

        Raises `InvalidRequest` when the tensor of all experts does not hold one of `shape`.
        """
        if name in self._source or (match := _EXPERT.fullmatch(name)) is None:
            return None
        module, expert = match["module"], int(match["expert"])
        fused = f"{match['experts']}.{_FUSED.get(module, module)}"
        if match["kind"] == "bias":
            fused += "_bias"
        if f"{fused}_blocks" in self._source and self._scheme is not None:
            return self._block(fused, expert, shape, self._scheme)
        return self._slice(fused, module, expert, shape) if fused in self._source else None

    def _slice(
        self, fused: str, module: str, expert: int, shape: tuple[int, ...]
    ) -> StoredTensor | TransposedTensor:
        stored = self._source.tensor(fused)
        halves = 2 if module in _FUSED else 1
        expected = (shape[0] * halves,) if len(shape) == 1 else (shape[1], shape[0] * halves)
        if stored.shape[1:] != expected or expert >= stored.shape[0]:
            raise InvalidRequest(
                f"{self._source.path}: tensor {fused} has shape {stored.shape}, "
                f"expected {expected} of expert {expert}"
            )
        rows = len(stored.data) // stored.shape[0]
        own = stored.data[expert * rows : (expert + 1) * rows]
        half = own.shape[1] // halves
        first = half if module == "up_proj" else 0
        own = own[:, first : first + half]
        if len(shape) == 1:
            return StoredTensor(stored.dtype, shape, own)
        return TransposedTensor(stored.dtype, (shape[0], shape[1]), own)

    def _block(self, fused: str, expert: int, shape: tuple[int, ...], scheme: Scheme) -> Fp4Matrix:
        if fused not in self._quantised:
            experts = len(self._source.array(f"{fused}_blocks").values)
            self._quantised[fused] = open_experts(self._source, fused, (experts, shape[0], shape[1]), scheme)
        if expert >= len(self._quantised[fused]):
            raise InvalidRequest(f"{self._source.path}: tensor {fused}_blocks has no expert {expert}")
        return self._quantised[fused][expert]

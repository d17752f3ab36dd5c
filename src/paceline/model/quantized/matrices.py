"""The matrix of a linear layer, in whichever precision a checkpoint has it."""

from typing import TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.formats import Fp4Format, Fp8Format, Int4Format
from paceline.model.quantized.fp4 import Fp4Matrix, open_fp4, open_fp4_experts
from paceline.model.quantized.fp8 import Fp8Matrix, open_fp8
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.int4_files import open_int4
from paceline.model.quantized.scales import FLOATS
from paceline.model.quantized.scheme import Scheme
from paceline.model.safetensors import SafetensorsDirectory
from paceline.model.stored import StoredTensor

StoredMatrix: TypeAlias = StoredTensor | Int4Matrix | Fp8Matrix | Fp4Matrix
"""Each has `shape` (out, in), `nbytes` in the file, and `float32(start, stop)`, the values of some rows."""


def open_matrix(
    source: SafetensorsDirectory, name: str, shape: tuple[int, int], scheme: Scheme | None
) -> StoredMatrix:
    """Views of the weight of `name`, a linear layer by its name in the files, without `.weight`.

    What the file has in floating point is read as such, whatever `scheme` says: checkpoints name only some of it.
    Raises `InvalidRequest`, naming file, tensor and reason, for tensors that are missing, damaged or of another shape.
    """
    found = None if scheme is None else scheme.format(name)
    if found is None or source.dtype(f"{name}.weight") in FLOATS:
        return _open_dense(source, f"{name}.weight", shape)
    match found:
        case Int4Format():
            return open_int4(source, name, shape, found)
        case Fp8Format():
            return open_fp8(source, name, shape, found)
        case Fp4Format():
            return open_fp4(source, name, shape, found)


def open_experts(
    source: SafetensorsDirectory, name: str, shape: tuple[int, int, int], scheme: Scheme
) -> list[Fp4Matrix]:
    """Views of the matrices of all experts in the quantized tensors of `name`, as gpt-oss has them; (E, out, in).

    Raises as `open_matrix` does, and when the scheme stores such tensors otherwise.
    """
    found = scheme.format(name)
    if not isinstance(found, Fp4Format) or found.layout != "mxfp4-blocks":
        raise InvalidRequest(f"{source.path}: {name}, all experts in one tensor, is supported in MXFP4 only")
    return open_fp4_experts(source, name, shape)


def _open_dense(source: SafetensorsDirectory, name: str, shape: tuple[int, int]) -> StoredTensor:
    stored = source.tensor(name)
    if stored.shape != shape:
        raise InvalidRequest(f"{source.path}: tensor {name} has shape {stored.shape}, expected {shape}")
    return stored

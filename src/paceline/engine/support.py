"""Weights that no kernel multiplies by, found in the headers of a model's files before anything is loaded."""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.model.fused import TransposedTensor
from paceline.model.quantized.fp4 import Fp4Matrix
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

_EXPERT = re.compile(r"(.+\.experts\.)\d+\.(\w+)\.weight")
# The activations that share a scale on a GPU, whose products are summed before they are scaled.
_FP8_COLUMNS = 128


def check_weights(stored: Mapping[str, Stored], path: Path, device: str) -> None:
    """Raises `InvalidRequest`, naming the model at `path`, the tensor and the reason, for weights that cannot be used
    on `device`, which is named as PyTorch does it."""
    firsts: dict[tuple[str, bool], str] = {}
    for name, matrix in stored.items():
        if device.startswith("cuda") and isinstance(matrix, Fp8Matrix) and not _fits_gpu(matrix):
            raise InvalidRequest(
                f"{path}: {name} has FP8 scales for {matrix.block[1]} columns each; "
                f"a GPU needs them for multiples of {_FP8_COLUMNS} or for all"
            )
        if (match := _EXPERT.fullmatch(name)) is None:
            continue
        if isinstance(matrix, Int4Matrix) and matrix.columns is not None:
            raise InvalidRequest(f"{path}: {name} is GPTQ with act-order, which is not supported for experts")
        # Gate and up of all experts lie in one tensor, and down in another.
        first = firsts.setdefault((match[1], match[2] == "down_proj"), name)
        if _stacking(matrix) != _stacking(stored[first]):
            raise InvalidRequest(
                f"{path}: {name} is {matrix.storage} and {first} {stored[first].storage}; "
                "experts of one layer in several precisions are not supported"
            )


def precision(matrix: Stored) -> Hashable:
    """Equal for matrices whose rows can lie in one, provided that their inputs have one order."""
    match matrix:
        case StoredTensor() | TransposedTensor():
            return "floating point"
        case Int4Matrix():
            return "int4", matrix.group
        case Fp8Matrix():
            return "fp8", matrix.block[1]
        case Fp4Matrix():
            return "fp4", matrix.scale_dtype


def _stacking(matrix: Stored) -> Hashable:
    """Equal for experts that can be stacked: of FP8 their scales too."""
    return precision(matrix), matrix.block if isinstance(matrix, Fp8Matrix) else None


def _fits_gpu(matrix: Fp8Matrix) -> bool:
    columns = matrix.block[1]
    return columns >= matrix.shape[1] or columns % _FP8_COLUMNS == 0

"""What a storage format of quantized matrices has to say to the rest of the package."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.quantize.tensors import OutputTensor

Float32: TypeAlias = npt.NDArray[np.float32]
UInt8: TypeAlias = npt.NDArray[np.uint8]

LARGEST = 1e30
"""Weights at or beyond this are taken for damage: sums of their products with codes come near the end of float32."""


class Damaged(ValueError):
    """Weights that are NaN, infinite, or at least `LARGEST`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that store a matrix; each of its rows belongs to `rows` rows of the matrix."""

    tensor: OutputTensor
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Encoded:
    """Some rows of a matrix: the bytes of each part, in the order of `Format.parts`, and what they decode to."""

    stored: tuple[UInt8, ...]
    values: Float32


class Format(Protocol):
    """A way to store matrices [out, in]. Rows are encoded in blocks that begin at multiples of `block_rows`."""

    @property
    def block_rows(self) -> int: ...

    def obstacle(self, shape: tuple[int, int]) -> str | None:
        """Why a matrix of this shape cannot be stored so, or None."""

    def parts(self, module: str, shape: tuple[int, int]) -> tuple[Part, ...]:
        """The tensors whose bytes `encode` gives."""

    def constants(self, module: str, shape: tuple[int, int]) -> tuple[tuple[OutputTensor, bytes], ...]:
        """Further tensors, whose bytes do not depend on the weights."""

    def encode(self, values: Float32) -> Encoded:
        """float32 [rows, in]. Raises `Damaged`."""

    def config(self, kept: list[str]) -> dict[str, Any]:
        """`quantization_config` of config.json for a model whose modules `kept` are not quantized."""


def largest(values: Float32, axes: tuple[int, ...]) -> Float32:
    """The largest magnitude along `axes`, which stay with length 1. Raises `Damaged`."""
    magnitude: Float32 = np.abs(values).max(axes, keepdims=True)
    # Written so that NaN fails as well.
    if not (magnitude < LARGEST).all():
        raise Damaged(f"NaN, infinity or a value beyond {LARGEST:g}")
    return magnitude

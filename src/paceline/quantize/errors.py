"""How far quantized weights are from the original ones."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from paceline.quantize.format import Float32


@dataclass(frozen=True, slots=True)
class Errors:
    """Of `weights` weights: the sum of their squares, the sum of the squares of their errors, the largest error."""

    weights: int = 0
    squared: float = 0.0
    squared_error: float = 0.0
    largest: float = 0.0

    @classmethod
    def between(cls, original: Float32, decoded: Float32) -> "Errors":
        """Both float32 [rows, in]; `decoded` is overwritten."""
        error = np.subtract(decoded, original, out=decoded)
        return cls(original.size, _squared(original), _squared(error), float(np.abs(error).max()))

    @classmethod
    def sum(cls, parts: Iterable["Errors"]) -> "Errors":
        """All of `parts` taken together, always in their order: another one would round otherwise."""
        total = cls()
        for part in parts:
            total = cls(
                total.weights + part.weights,
                total.squared + part.squared,
                total.squared_error + part.squared_error,
                max(total.largest, part.largest),
            )
        return total

    @property
    def relative(self) -> float:
        """Root mean square of the error, divided by that of the weights."""
        return math.sqrt(self.squared_error / self.squared) if self.squared else 0.0


NO_ERRORS = Errors()


def _squared(values: Float32) -> float:
    total = float(np.einsum("ij,ij->i", values, values).sum(dtype=np.float64))
    # The squares of very large and very small weights leave float32. Those of all others take a seventh of the time so.
    return total if 1e-20 < total < 1e30 else float(np.einsum("ij,ij->", values, values, dtype=np.float64))

"""One kernel at one shape: what it is checked against, and what it has to move and to compute."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.gpu_clock import Clock, Precision, Roofs


@dataclass(frozen=True)
class Prepared:
    """A case with its tensors.

    run, reference: the kernel and its plain form; each gives what they are compared by
    moved: bytes that have to be read and written at least
    operations: a multiplication and an addition are two
    tolerance: the largest difference allowed, as a share of the largest value
    """

    run: Callable[[], Tensor]
    reference: Callable[[], Tensor]
    moved: int
    operations: int = 0
    tolerance: float = 2e-2
    precision: Precision = "bf16"

    def error(self) -> float:
        """The largest difference, as a share of the largest value; infinite where something is not finite."""
        found, expected = self.run().double(), self.reference().double()
        if found.shape != expected.shape or not bool(torch.isfinite(found).all()):
            return float("inf")
        return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


@dataclass(frozen=True)
class Case:
    """`prepare` makes the tensors, which live as long as what it returns."""

    kernel: str
    shape: str
    prepare: Callable[[torch.device], Prepared]


@dataclass(frozen=True)
class Result:
    """gbps: 10^9 bytes per second; tflops: 10^12 operations per second; roof: the share of what could be reached"""

    kernel: str
    shape: str
    error: float
    tolerance: float
    microseconds: float
    gbps: float
    tflops: float
    roof: float

    @property
    def good(self) -> bool:
        return self.error <= self.tolerance


def measure(case: Case, clock: Clock, roofs: Roofs, device: torch.device) -> Result:
    """Check and time a case. Raises whatever its kernel raises."""
    prepared = case.prepare(device)
    error = prepared.error()
    seconds = clock.seconds(prepared.run)
    least = roofs.seconds(prepared.moved, prepared.operations, prepared.precision)
    return Result(
        kernel=case.kernel,
        shape=case.shape,
        error=error,
        tolerance=prepared.tolerance,
        microseconds=seconds * 1e6,
        gbps=prepared.moved / seconds / 1e9,
        tflops=prepared.operations / seconds / 1e12,
        roof=least / seconds,
    )

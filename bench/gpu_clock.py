"""How long something takes on a GPU, and the most that one can do."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

Precision: TypeAlias = Literal["bf16", "fp8"]


class Clock(Protocol):
    def seconds(self, run: Callable[[], object]) -> float:
        """The median of several runs, each with cold caches."""


class CudaClock:
    """By events on the device, so that launches are not counted. The L2 cache is flushed before each run."""

    def __init__(self, device: torch.device, budget_s: float = 0.1) -> None:
        self._flush = torch.empty(256 << 20, dtype=torch.int8, device=device)
        self._budget_s = budget_s

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        rough = self._measure(run, 3)
        return self._measure(run, max(5, min(100, int(self._budget_s / max(rough, 1e-6)))))

    def _measure(self, run: Callable[[], object], count: int) -> float:
        event: Callable[[], torch.cuda.Event] = partial(torch.cuda.Event, enable_timing=True)
        pairs = [(event(), event()) for _ in range(count)]
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return float(median(start.elapsed_time(end) for start, end in pairs)) / 1e3


@dataclass(frozen=True)
class Roofs:
    """Bytes per second that a copy moves, read and written, and operations per second of a large product, measured.

    `fp8` is None for a GPU that has no such numbers.
    """

    bandwidth: float
    bf16: float
    fp8: float | None

    def seconds(self, moved: int, operations: int, precision: Precision) -> float:
        """The least that moving so many bytes and so many operations can take."""
        peak = self.bf16 if precision == "bf16" or self.fp8 is None else self.fp8
        return max(moved / self.bandwidth, operations / peak)


def measure_roofs(clock: Clock, device: torch.device, *, copied: int = 2 << 30, size: int = 8192) -> Roofs:
    source, target = (torch.zeros(copied, dtype=torch.uint8, device=device) for _ in range(2))
    bandwidth = 2 * copied / clock.seconds(lambda: target.copy_(source))
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    operations = 2 * size**3
    bf16 = operations / clock.seconds(lambda: a @ b)
    return Roofs(bandwidth, bf16, _fp8_roof(clock, a, b, operations))


def _fp8_roof(clock: Clock, a: Tensor, b: Tensor, operations: int) -> float | None:
    if a.device.type == "cuda" and torch.cuda.get_device_capability(a.device) < (8, 9):
        return None
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=a.device)
    return operations / clock.seconds(
        lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    )

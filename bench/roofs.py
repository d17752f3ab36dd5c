"""What this machine gives at most, measured in the same run as what is compared with it."""

import ctypes
import mmap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.rows import Row
from paceline.engine.cpu import build, levels

_SOURCE = Path(__file__).parent / "native" / "roofs.cpp"
_MEMORY = 512 << 20
"""Bytes to read: many times what caches hold."""
_ROUNDS = 5_000_000


class Roofs:
    """Bytes per second from memory, and multiply-adds of 8-bit integers per second, of so many threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._library = ctypes.CDLL(str(build.library(levels.detect(), _SOURCE)))
        self._library.read_memory.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
        self._library.multiply_integers.argtypes = [ctypes.c_int64, ctypes.c_int32]
        self._memory = np.frombuffer(mmap.mmap(-1, _MEMORY), dtype=np.uint8)
        self._memory[:: mmap.PAGESIZE] = 1
        self.bandwidths: list[float] = []
        self.products: list[float] = []

    def measure(self) -> None:
        """Once more: between the rows of a run, so that both meet the same machine."""
        address = self._memory.ctypes.data
        self.bandwidths.append(
            _MEMORY / _seconds(lambda: self._library.read_memory(address, _MEMORY, self._threads))
        )
        products = self._threads * _ROUNDS * self._library.products_of_a_round()
        self.products.append(
            products / _seconds(lambda: self._library.multiply_integers(_ROUNDS, self._threads))
        )

    @property
    def bandwidth(self) -> float:
        """The best that was seen: a roof is what could be, and other work on the machine only lowers it."""
        return max(self.bandwidths)

    def rows(self) -> list[Row]:
        config: dict[str, str | int | float | bool] = {"threads": self._threads}
        return [
            Row.of("roof", config, "dram_read", [b / 1e9 for b in self.bandwidths], "GB/s"),
            Row.of("roof", config, "int8_products", [p / 1e9 for p in self.products], "GMAC/s"),
        ]


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began

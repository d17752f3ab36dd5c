"""The thread team of the native step, on free cores and on cores that others want as well.

python -m bench.team [--quick] [--json FILE]

Steps have the phases and bytes of SmolLM2-135M at batch 1, without its arithmetic. They are compared with the same
steps on threads that have fixed shares and spin at a barrier after each phase. `of_fair_share` is the throughput
relative to that of free cores, divided by the part of two cores that the kernel owes to two threads: 1 is all that
can be had.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.rows import Row, arguments, quantile, report
from paceline.engine.cpu import build, levels

SOURCE = Path(__file__).parent / "native" / "team.cpp"
THREADS = 2
GAP_S = 2e-4  # what Python does between two steps
MOST_STEPS = 100_000
PHASES = 180
# By nice value, as in the kernel.
WEIGHTS = {0: 1024, 10: 110}


class Steps(ctypes.Structure):
    _fields_ = (
        ("seconds", ctypes.POINTER(ctypes.c_double)),
        ("most", ctypes.c_int),
        ("budget_s", ctypes.c_double),
        ("cpu_s", ctypes.c_double),
        ("wall_s", ctypes.c_double),
    )


@dataclass(frozen=True)
class Measured:
    seconds: npt.NDArray[np.float64]  # of each step
    per_s: float  # steps
    cores: float  # that this process had

    def milliseconds(self) -> list[float]:
        return [1e3 * s for s in self.seconds]


@dataclass(frozen=True)
class Contention:
    """Busy processes beside the team: one for each of `cores`, or one that goes where it likes."""

    name: str
    cores: tuple[int | None, ...]
    nice: int

    def fair_share(self) -> float:
        """The part of two cores that two threads are owed."""
        others = len(self.cores) * WEIGHTS[self.nice]
        ours = THREADS * WEIGHTS[0]
        return min(1.0, ours / (ours + others))


FREE = Contention("free", (), 0)
CONTENTIONS = (
    Contention("busy process on each core", (0, 1), 0),
    Contention("one busy process", (None,), 0),
    Contention("busy process at nice 10 on each core", (0, 1), 10),
)


def load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.library(levels.detect(), SOURCE)))
    library.time_steps.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.POINTER(Steps)]
    return library


def time_steps(library: ctypes.CDLL, *, barrier: bool, budget_s: float) -> Measured:
    seconds = np.zeros(MOST_STEPS)
    pointer = seconds.ctypes.data_as(ctypes.POINTER(ctypes.c_double))
    steps = Steps(pointer, MOST_STEPS, budget_s, 0, 0)
    count = library.time_steps(barrier, THREADS, GAP_S, ctypes.byref(steps))
    return Measured(seconds[:count], count / steps.wall_s, steps.cpu_s / steps.wall_s)


def time_phases(library: ctypes.CDLL, *, barrier: bool, runs: int) -> list[float]:
    """Microseconds of a phase whose items do nothing, in each of `runs` runs."""
    seconds = np.zeros(runs)
    library.time_phases(int(barrier), THREADS, PHASES, runs, ctypes.c_void_p(seconds.ctypes.data))
    return [1e6 * s / PHASES for s in seconds]


@contextmanager
def beside(contention: Contention) -> Iterator[None]:
    processes = []
    for core in contention.cores:
        pin = "" if core is None else f"os.sched_setaffinity(0, {{{core}}});"
        code = f"import os; {pin} os.nice({contention.nice})\nwhile True: pass"
        processes.append(subprocess.Popen([sys.executable, "-c", code]))
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    args = arguments(__doc__).parse_args()
    if len(os.sched_getaffinity(0)) < THREADS:
        sys.exit(f"this needs {THREADS} cores")
    library = load()
    budget_s, rounds = (0.5, 3) if args.quick else (0.8, 5)
    rows = []
    for name, barrier in (("barrier", True), ("team", False)):
        rows.append(
            Row.of(
                name,
                {"phases": PHASES},
                "empty_phase_us",
                time_phases(library, barrier=barrier, runs=500),
                "us",
            )
        )
    free: dict[str, list[Measured]] = {"barrier": [], "team": []}
    for _ in range(rounds):
        # By turns, so that both see the same machine.
        for name, measured in free.items():
            measured.append(time_steps(library, barrier=name == "barrier", budget_s=budget_s))
    for name, measured in free.items():
        rows += step_rows(name, FREE, measured)
    ratios = [
        float(np.median(b.seconds) / np.median(t.seconds))
        for b, t in zip(free["barrier"], free["team"], strict=True)
    ]
    rows.append(Row.of("team", {"beside": FREE.name}, "of_barrier", ratios, "ratio"))
    quiet = quantile([m.per_s for m in free["team"]], 0.5)
    for contention in CONTENTIONS:
        with beside(contention):
            time_steps(library, barrier=False, budget_s=0.5)  # until the kernel has settled
            for name in free:
                measured = [
                    time_steps(library, barrier=name == "barrier", budget_s=budget_s) for _ in range(rounds)
                ]
                rows += step_rows(name, contention, measured)
                shares = [m.per_s / quiet / contention.fair_share() for m in measured]
                rows.append(Row.of(name, {"beside": contention.name}, "of_fair_share", shares, "ratio"))
    report(rows, "Threads of a step", args.json)


def step_rows(name: str, contention: Contention, measured: list[Measured]) -> list[Row]:
    config: dict[str, str | int | float | bool] = {"beside": contention.name}
    every = [ms for m in measured for ms in m.milliseconds()]
    return [
        Row.of(name, config, "step_ms", every, "ms"),
        Row.of(name, config, "step_p99_ms", [quantile(m.milliseconds(), 0.99) for m in measured], "ms"),
        Row.of(name, config, "cores", [m.cores for m in measured], "cores"),
    ]


if __name__ == "__main__":
    main()

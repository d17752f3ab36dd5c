"""Levels of instruction sets: the native step is compiled once for each, from the same sources.

`avx512` is what servers have since Cooper Lake and Zen 4 (VNNI and BF16), `avx2` what x86 has since Haswell and Zen,
`plain` is C++ without intrinsics, for Arm and everything else.
"""

import os
import platform
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from paceline.contracts.errors import InvalidRequest

Level: TypeAlias = Literal["avx512", "avx2", "plain"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""The fastest first."""

VARIABLE = "PACELINE_CPU_LEVEL"

FLAGS: dict[Level, tuple[str, ...]] = {
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mfma",
        "-mf16c",
    ),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "plain": (),
}
"""What the compiler is told. Nothing else of a machine enters a build, so one serves all machines of a level."""

# As /proc/cpuinfo calls what `FLAGS` asks for.
_FEATURES: dict[Level, frozenset[str]] = {
    "avx512": frozenset(
        ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "fma", "f16c")
    ),
    "avx2": frozenset(("avx2", "fma", "f16c")),
    "plain": frozenset(),
}


def detect() -> Level:
    """The level to run: what $PACELINE_CPU_LEVEL names, otherwise the fastest of this machine.

    Raises `InvalidRequest` when the variable names no level, or one that this machine lacks.
    """
    available = supported()
    forced = os.environ.get(VARIABLE)
    if not forced:
        return available[0]
    for level in available:
        if level == forced:
            return level
    if forced in LEVELS:
        raise InvalidRequest(f"{VARIABLE}={forced}: this CPU runs only {', '.join(available)}")
    raise InvalidRequest(f"{VARIABLE}={forced}: expected one of {', '.join(LEVELS)}")


def supported() -> tuple[Level, ...]:
    """The levels that this machine runs, the fastest first."""
    features = _cpu_features()
    return tuple(level for level in LEVELS if _FEATURES[level] <= features)


@cache
def _cpu_features() -> frozenset[str]:
    """What Linux says that every x86 core has; nothing elsewhere."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return features_of(cpuinfo)


def features_of(cpuinfo: str) -> frozenset[str]:
    """The flags that all processors of a /proc/cpuinfo share."""
    found = [
        frozenset(line.partition(":")[2].split()) for line in cpuinfo.splitlines() if line.startswith("flags")
    ]
    return frozenset.intersection(*found) if found else frozenset()

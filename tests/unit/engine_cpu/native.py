"""Kernels of the native step as libraries, through a few C functions over the headers' templates."""

import ctypes
import os
import time
from functools import cache
from pathlib import Path

import pytest

from paceline.engine.cpu import levels
from paceline.engine.cpu.build import cache_directory, library
from paceline.engine.cpu.levels import Level

SHIMS = Path(__file__).parent / "native"
LEVELS: tuple[Level, ...] = levels.LEVELS

SANITIZE = "NATIVE_SANITIZE"
"""What the environment says to build with: `address,undefined` or `thread`. The runtime has to be preloaded."""

# GCC 12 warns of its own header of AVX-512.
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized", "-Wno-uninitialized")
_SIMDE = Path("/usr/include/simde/x86/avx512.h")
_KEPT_S = 3 * 24 * 3600


@cache
def build(source: Path, level: Level, *flags: str) -> ctypes.CDLL:
    """`source` compiled for `level` with `flags` behind the product's own.

    What this machine lacks of AVX-512 is emulated by SIMDe (Debian: libsimde-dev). Skips the test when the machine runs
    neither. Libraries are kept as long as no header changes.
    """
    sanitizers = os.environ.get(SANITIZE)
    if sanitizers and level != levels.supported()[0]:
        pytest.skip(
            "sanitizers watch the level that this machine runs: others take minutes to compile with them"
        )
    if level not in levels.supported():
        if level != "avx512" or not _SIMDE.exists():
            pytest.skip(f"this machine does not run {level}")
        # Emulated vectors are passed otherwise than real ones would be, which matters to nobody here. Above -O1 the
        # emulation takes minutes to compile.
        flags = ("-O1", "-DPACELINE_SIMDE", "-Wno-psabi", *levels.FLAGS[levels.supported()[0]], *flags)
        level = "plain"
    if sanitizers:
        # The runtime is preloaded for this process; the compiler would only be slow with it.
        os.environ.pop("LD_PRELOAD", None)
        # With -O3 or full debugging information they take minutes to compile.
        flags = ("-O1", "-g1", "-fno-omit-frame-pointer", *flags)
        flags = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", *flags)
    else:
        flags = (*_WARNINGS, *flags)
    directory = cache_directory() / "tests"
    path = library(level, source, flags, directory)
    os.utime(path)
    _remove_unused(directory)
    return ctypes.CDLL(str(path))


def _remove_unused(directory: Path) -> None:
    """Every edit of a header leaves its libraries behind."""
    for path in directory.glob("*.so"):
        try:
            if path.stat().st_mtime < time.time() - _KEPT_S:
                path.unlink()
        except FileNotFoundError:
            continue

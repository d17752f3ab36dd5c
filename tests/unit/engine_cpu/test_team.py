"""Every item runs once, after the phase before it, whoever runs it: also with far more threads than cores."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engine.cpu import levels
from paceline.engine.cpu.build import NATIVE, find_compiler
from tests.unit.engine_cpu.native import SHIMS, build

SOURCE = SHIMS / "team.cpp"
SIGNALS = 8  # that the shim asks for


@pytest.fixture(scope="module")
def team() -> ctypes.CDLL:
    return build(SOURCE, levels.supported()[0])


# Short runs end before helpers are awake, long programs grow past those that helpers may still read.
@pytest.mark.parametrize(("runs", "phases", "items"), [(4000, 3, 4), (300, 40, 60), (3, 2000, 9)])
@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_programs_give_what_one_thread_gives(
    team: ctypes.CDLL, threads: int, runs: int, phases: int, items: int
) -> None:
    assert team.wrong_runs(threads, runs, phases, items, ctypes.c_uint32(runs + threads)) == 0


def test_others_take_the_items_of_a_thread_that_is_held_up(team: ctypes.CDLL) -> None:
    for threads in (2, 3, 8):
        team.delay_first(threads, 4 * threads)


def test_helpers_block_signals_and_the_caller_keeps_its_own(team: ctypes.CDLL) -> None:
    blocked = (ctypes.c_int * 3)()
    team.blocked_signals(3, blocked)
    assert list(blocked) == [0, SIGNALS, SIGNALS]


def test_teams_end_with_their_threads(team: ctypes.CDLL) -> None:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("counts threads in /proc")
    before = len(os.listdir(tasks))
    for _ in range(50):
        team.delay_first(4, 8)
    assert len(os.listdir(tasks)) == before


@pytest.mark.skipif(sys.platform != "linux", reason="setarch is Linux's")
def test_the_thread_sanitizer_finds_nothing(tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    program = tmp_path / "team"
    flags = ["-std=c++17", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{NATIVE}"]
    made = subprocess.run(
        [*compiler.command, *flags, str(SOURCE), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0 and "tsan" in made.stderr:
        pytest.skip("the compiler came without its thread sanitizer")
    assert made.returncode == 0, made.stderr
    # Where the kernel spreads addresses further than the sanitizer knows, it cannot start.
    ran = subprocess.run(
        ["setarch", "-R", str(program)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "0 wrong\n"), ran.stderr

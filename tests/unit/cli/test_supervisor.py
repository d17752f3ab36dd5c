"""Keeping real processes alive and ending them."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paceline.cli.restart import STARTS, Restarts
from paceline.cli.supervisor import Child, Process, Supervisor

WAITS = "import signal; print('up', flush=True); signal.pause()"
IGNORES_SIGTERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)


class Run:
    """A supervisor with everything it said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.said = asyncio.Event()
        self.starts: asyncio.Queue[int] = asyncio.Queue()
        self.restarted = 0
        self.given_up: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self.supervisor = Supervisor(
            report=self._report, on_restart=self._restarted, on_given_up=self.given_up.set_result
        )

    def _report(self, line: str) -> None:
        self.lines.append(line)
        self.said.set()

    def _restarted(self) -> None:
        self.restarted += 1

    def child(self, name: str, code: str) -> Child:
        async def launch() -> Process:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout
            await process.stdout.readline()
            self.starts.put_nowait(process.pid)
            return process

        return Child(name, Path("unused.log"), launch)


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    run = Run()
    yield run
    run.supervisor.kill()


async def test_a_killed_child_is_started_again_and_one_line_says_so(run: Run) -> None:
    child = run.child("decode-0", WAITS)
    run.supervisor.keep(child)
    first = await run.starts.get()
    child.ready = True
    child.send(signal.SIGKILL)
    second = await run.starts.get()
    assert second != first
    assert run.lines == ["decode-0 was killed by SIGKILL; starting it again in 0.2 s"]
    assert (run.restarted, child.restarts.count) == (1, 1)
    assert not child.ready
    await run.supervisor.stop([child], 5)


async def test_stop_lets_children_finish_and_does_not_restart_them(run: Run) -> None:
    children = [run.child("a", WAITS), run.child("b", WAITS)]
    for child in children:
        run.supervisor.keep(child)
        await run.starts.get()
    await run.supervisor.stop(children, 5)
    assert [child.pid for child in children] == [None, None]
    assert run.lines == []
    assert run.starts.empty()


async def test_a_child_that_does_not_stop_is_killed_after_its_grace(run: Run) -> None:
    child = run.child("stubborn", IGNORES_SIGTERM)
    run.supervisor.keep(child)
    await run.starts.get()
    await run.supervisor.stop([child], 0.1)
    assert child.process
    assert child.process.returncode == -signal.SIGKILL
    assert run.lines == ["stubborn did not stop within 0 s: killed"]


async def test_kill_ends_a_stop_that_waits(run: Run) -> None:
    child = run.child("stubborn", IGNORES_SIGTERM)
    run.supervisor.keep(child)
    await run.starts.get()
    stopping = asyncio.create_task(run.supervisor.stop([child], 60))
    await child.stopping.wait()
    run.supervisor.kill()
    await stopping
    assert child.pid is None


async def test_stop_between_two_lives_starts_no_third(run: Run) -> None:
    child = run.child("dies", "print('up', flush=True); raise SystemExit(3)")
    for _ in range(4):
        child.restarts.after(1.0, was_ready=True)
    run.supervisor.keep(child)
    await run.starts.get()
    await run.said.wait()
    await run.supervisor.stop([child], 5)
    assert run.lines == ["dies exited with status 3; starting it again in 3.2 s"]
    assert run.starts.empty()


async def test_a_child_that_cannot_be_started_is_given_up(run: Run) -> None:
    async def launch() -> Process:
        raise OSError("no such binary")

    child = Child("broken", Path("unused.log"), launch, Restarts())
    for _ in range(STARTS - 1):
        child.restarts.after(0.0, was_ready=False)
    run.supervisor.keep(child)
    assert await run.given_up is child


async def test_a_child_that_says_that_it_can_never_start_is_given_up_at_once(run: Run) -> None:
    child = run.child("misconfigured", "import os; print('up', flush=True); raise SystemExit(os.EX_CONFIG)")
    run.supervisor.keep(child)
    assert await run.given_up is child
    assert run.lines == []

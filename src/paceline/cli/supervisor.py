"""Keeps the processes of a run alive, and ends them in order."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from paceline.cli.restart import Restarts
from paceline.contracts.errors import Unavailable
from paceline.runtime.tasks import Tasks


class Process(Protocol):
    """One life of a child, as `asyncio.subprocess.Process` has it."""

    @property
    def pid(self) -> int:
        """Of this life."""

    @property
    def returncode(self) -> int | None:
        """None while it lives."""

    def send_signal(self, signum: int, /) -> None:
        """Signal it. Raises `ProcessLookupError` when it is gone."""

    async def wait(self) -> int | None:
        """Until it ends. Returns the exit status, negative for a signal, or None where it is not known."""


Launch: TypeAlias = Callable[[], Awaitable[Process]]


@dataclass(eq=False)
class Child:
    """One process of the run through all its lives. `ready` is about the present one; whoever sees it says so."""

    name: str
    log: Path
    launch: Launch
    restarts: Restarts = field(default_factory=Restarts)
    process: Process | None = None
    began: float = 0.0  # of the present life, in monotonic seconds
    ready: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def pid(self) -> int | None:
        """Of the life that runs now."""
        if self.process is None or self.process.returncode is not None:
            return None
        return self.process.pid

    @property
    def is_misconfigured(self) -> bool:
        """It said itself that it can never start."""
        return not self.ready and self.process is not None and self.process.returncode == os.EX_CONFIG

    def send(self, signum: signal.Signals) -> None:
        """Signal the process unless it is gone already."""
        if self.process and self.pid:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signum)


class Supervisor:
    """Restarts children that die, with backoff, until they are stopped.

    `report` gets a line for people about each death, `on_restart` is called after each restart, and `on_given_up`
    with a child that never becomes ready: at once if it exits with `EX_CONFIG`.
    """

    def __init__(
        self,
        *,
        report: Callable[[str], None],
        on_restart: Callable[[], None],
        on_given_up: Callable[[Child], None],
    ) -> None:
        self._report = report
        self._on_restart = on_restart
        self._on_given_up = on_given_up
        self._tasks = Tasks()
        self._keepers: dict[Child, asyncio.Task[None]] = {}

    def keep(self, child: Child) -> None:
        """Start `child`, and start it again whenever it dies."""
        self._keepers[child] = self._tasks.spawn(self._keep(child), name=f"keep {child.name}")

    async def stop(self, children: Sequence[Child], grace_s: float) -> None:
        """Let `children` finish their work for up to `grace_s` seconds, then kill those that remain."""
        keepers = {child: self._keepers[child] for child in children if child in self._keepers}
        for child in keepers:
            child.stopping.set()
            child.send(signal.SIGTERM)
        if not keepers:
            return
        await asyncio.wait(keepers.values(), timeout=grace_s)
        for child, keeper in keepers.items():
            if not keeper.done():
                self._report(f"{child.name} did not stop within {grace_s:.0f} s: killed")
                child.send(signal.SIGKILL)
        await asyncio.wait(keepers.values())

    def kill(self) -> None:
        """End everything now, whatever `stop` is waiting for."""
        for child in self._keepers:
            child.stopping.set()
            child.send(signal.SIGKILL)

    async def _keep(self, child: Child) -> None:
        while not child.stopping.is_set():
            child.began = time.monotonic()
            end = await self._live(child)
            if child.stopping.is_set():
                return
            delay = child.restarts.after(time.monotonic() - child.began, was_ready=child.ready)
            if delay is None or child.is_misconfigured:
                self._on_given_up(child)
                return
            self._report(f"{child.name} {end}; starting it again in {delay:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(child.stopping.wait(), delay)

    async def _live(self, child: Child) -> str:
        """One life: how it ended, in words."""
        child.ready = False
        try:
            child.process = await child.launch()
        except (OSError, Unavailable) as e:
            return f"did not start: {e}"
        if child.restarts.count:
            self._on_restart()
        if child.stopping.is_set():
            child.send(signal.SIGTERM)
        code = await child.process.wait()
        if code is None:
            return "ended"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

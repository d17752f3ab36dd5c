"""The NATS server as a child of the supervisor: started again on the port and with the token that everyone knows."""

import asyncio
import os
import signal
from pathlib import Path
from urllib.parse import urlsplit

from paceline.bus.server import NatsServer
from paceline.cli.supervisor import Child, Process


class NatsChild:
    """The server beside its `child`, which the supervisor keeps. `start` begins the first life. Files and batches are
    in `store`."""

    def __init__(self, log: Path, store: Path) -> None:
        self.url = ""
        self.child = Child("nats", log, self._launch)
        self._server = NatsServer(store)
        self._running: Process | None = None

    async def start(self) -> None:
        """Raises `Unavailable` with the reason when there can be no server at all."""
        self.url = await self._server.start()
        self._running = _Watched(self._server.pid)

    async def _launch(self) -> Process:
        if self._running is None or self._running.returncode is not None:
            await self._server.start(urlsplit(self.url).port or 0)
            self._running = _Watched(self._server.pid)
        # It accepts connections already.
        self.child.ready = True
        return self._running

    async def close(self) -> None:
        """After the server ended."""
        await self._server.stop()


class _Watched:
    """A process that somebody else reaps, so that its exit status is not known here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._fd = os.pidfd_open(pid)

    def send_signal(self, signum: int) -> None:
        signal.pidfd_send_signal(self._fd, signum)

    async def wait(self) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fd)
            os.close(self._fd)
        self.returncode = 0

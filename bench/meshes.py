"""A whole mesh for the time of a measurement, started as a user starts it."""

import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.load import Gateway

START_S = 180.0


@dataclass(frozen=True)
class Running:
    """A mesh that answers. `processes` are pids by service: gateway, decode, ..., nats."""

    gateway: Gateway
    processes: dict[int, str]

    def cpu_seconds(self) -> dict[str, float]:
        """What each service has used so far; of workers only the event loop, and neither engine nor copies."""
        seconds = dict.fromkeys(self.processes.values(), 0.0)
        for pid, service in self.processes.items():
            tasks = Path(f"/proc/{pid}/task")
            for thread in [str(pid)] if service in {"prefill", "decode"} else os.listdir(tasks):
                with suppress(FileNotFoundError):  # it has ended
                    # Of the first field's nanoseconds; /proc/<pid>/stat counts in hundredths of a second.
                    seconds[service] += int((tasks / thread / "schedstat").read_text().split()[0]) / 1e9
        return seconds


@asynccontextmanager
async def running(model: str, *flags: str) -> AsyncIterator[Running]:
    """`paceline up` with `flags` on a free port, once it is healthy. `model` is what it calls its default model."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline.cli", "up", "--port", str(port), *flags),
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": state},
        )
        try:
            await healthy(port, process)
            yield Running(Gateway("127.0.0.1", port, model), _services(process.pid))
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()


def free_port() -> int:
    """That nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def healthy(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait for a gateway that can serve its model. Raises `RuntimeError` when `process` ends before."""
    async with asyncio.timeout(START_S):
        while process.returncode is None:
            if await _status(port) == b"200":
                return
            await asyncio.sleep(0.2)
    raise RuntimeError(f"the mesh ended with status {process.returncode}")


async def _status(port: int) -> bytes:
    """The status of GET /health, or nothing."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return (await reader.read()).split(b" ", 2)[1]
    except (OSError, IndexError):
        return b""
    finally:
        writer.close()


_SERVICE = re.compile(r"paceline\.(gateway|prefill|decode|kvstore|drafter)\0|nats-server\0")


def _services(parent: int) -> dict[int, str]:
    """The children of `parent`, by what they serve."""
    found = {}
    for pid in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
        if match := _SERVICE.search(Path(f"/proc/{pid}/cmdline").read_text()):
            found[pid] = match[1] or "nats"
    return found

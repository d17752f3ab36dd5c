"""A whole mesh for the time of a measurement, started as a user starts it."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

START_S = 180.0


@asynccontextmanager
async def running(*flags: str) -> AsyncIterator[aiohttp.ClientSession]:
    """`paceline up` with `flags` on a free port; a session on its base URL once it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as state:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline.cli", "up", "--port", str(port), *flags),
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": state},
        )
        try:
            timeout = aiohttp.ClientTimeout(total=600)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as session:
                await _healthy(session, process)
                yield session
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()


async def _healthy(session: aiohttp.ClientSession, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_S):
        while process.returncode is None:
            try:
                async with session.get("/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.2)
    raise RuntimeError(f"the mesh ended with status {process.returncode}")

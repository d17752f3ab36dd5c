"""`paceline up` as a user runs it, with a client that checks every answer."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from paceline.cli.sse import SseParser
from paceline.engine.registry import EngineName

START_S = 60.0


@dataclass
class Reply:
    """One answer as it came."""

    status: int = 0
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    done: bool = False


class System:
    """One mesh: its supervisor, its processes, its HTTP front."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        session: aiohttp.ClientSession,
        state: Path,
        env: dict[str, str],
    ) -> None:
        self.process = process
        self.session = session
        self.state = state
        self._env = env

    @property
    def port(self) -> int:
        """Of the gateway."""
        (state,) = self.state.glob("paceline/*")
        return int(state.name)

    def pids(self) -> dict[str, int]:
        """Every child process of the supervisor by worker name; `nats` for the server."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                environ = (stat.parent / "environ").read_bytes().decode(errors="replace")
                command = (stat.parent / "cmdline").read_bytes().decode(errors="replace")
            except (OSError, IndexError):
                continue
            if parent != self.process.pid:
                continue
            worker = re.search(r"PACELINE_WORKER=([^\0]*)", environ)
            if worker and "paceline." in command:
                found[worker.group(1)] = int(stat.parent.name)
            elif "nats-server" in command:
                found["nats"] = int(stat.parent.name)
        return found

    def kill(self, worker: str) -> None:
        os.kill(self.pids()[worker], signal.SIGKILL)

    async def ask(
        self,
        content: str,
        *,
        max_tokens: int = 16,
        on_text: Callable[[Reply], None] = lambda _: None,
        **options: Any,
    ) -> Reply:
        """Stream one answer to its end."""
        reply, parser = Reply(), SseParser()
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        body = _body(content, max_tokens) | streamed | options
        async with self.session.post("/v1/chat/completions", json=body) as response:
            reply.status = response.status
            if response.status != 200:
                reply.error = (await response.json())["error"]
                return reply
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    _take(reply, event)
                on_text(reply)
        return reply

    async def complete(self, content: str, *, max_tokens: int = 16) -> Reply:
        """One answer that is not streamed."""
        async with self.session.post("/v1/chat/completions", json=_body(content, max_tokens)) as response:
            body = await response.json()
            if response.status != 200:
                return Reply(response.status, error=body["error"])
            (choice,) = body["choices"]
            text, reason = choice["message"]["content"], choice["finish_reason"]
            return Reply(response.status, text, reason, body["usage"], done=True)

    async def status(self) -> list[dict[str, Any]]:
        """What `paceline status --json` prints: a row for each worker."""
        command = ("status", "--json", "--port", str(self.port))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "paceline.cli", *command), stdout=asyncio.subprocess.PIPE, env=self._env
        )
        output, _ = await process.communicate()
        rows: list[dict[str, Any]] = json.loads(output)
        return rows

    async def healthy(self) -> None:
        """Wait until a model can be served."""
        async with asyncio.timeout(START_S):
            while self.process.returncode is None:
                try:
                    async with self.session.get("/health") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.05)
        raise AssertionError(f"paceline up ended with status {self.process.returncode}")

    async def idle(self, timeout: float = 15.0) -> None:
        """Wait until nothing in the mesh is held for any request."""
        leaks: list[str] = []
        try:
            async with asyncio.timeout(timeout):
                while leaks := await self._leaks():
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"not idle after {timeout} s: {leaks}") from None

    async def stored(self) -> int:
        """Pages in the kvstore, by its last beacon."""
        async with self.session.get("/metrics") as response:
            found = re.search(
                r'^paceline_worker_pages_cached\{role="kvstore".* ([\d.]+)$', await response.text(), re.M
            )
        return int(float(found.group(1))) if found else 0

    async def acquainted(self) -> None:
        """Workers hear of kvstore and drafter by their beacons: until both have had a part in an answer."""
        async with asyncio.timeout(15):
            while True:
                reply = await self.ask("The same question again and again. " * 20, max_tokens=30)
                if reply.usage["paceline"]["drafted"] and await self.stored():
                    return

    async def _leaks(self) -> list[str]:
        async with self.session.get("/metrics") as response:
            metrics = (await response.text()).splitlines()
        if re.search(r"^paceline_leaks 0\.0$", "\n".join(metrics), re.M):
            return []
        return [
            m for m in metrics if m.startswith("paceline_") and not m.endswith(" 0.0") and "_bucket" not in m
        ]


def _body(content: str, max_tokens: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def _take(reply: Reply, event: str) -> None:
    if event == "[DONE]":
        reply.done = True
        return
    assert not reply.done, f"an event after [DONE]: {event}"
    body = json.loads(event)
    if "error" in body:
        assert reply.error is None
        reply.error = body["error"]
        return
    reply.usage = body.get("usage") or reply.usage
    for choice in body["choices"]:
        reply.text += choice["delta"].get("content") or ""
        if choice["finish_reason"] is not None:
            assert reply.finish_reason is None, "a second terminal event"
            reply.finish_reason = choice["finish_reason"]


@asynccontextmanager
async def paceline_up(
    model: Path,
    tmp_path: Path,
    *flags: str,
    engine: EngineName = "fake",
    step_s: float = 0.0,
    env: dict[str, str] | None = None,
) -> AsyncIterator[System]:
    """A healthy mesh on a free port, ended by SIGTERM if the test has not ended it."""
    state = tmp_path / "state"
    (tmp_path / "run").mkdir(mode=0o700)
    output = tmp_path / "up.log"
    settings = {
        **os.environ,
        "XDG_STATE_HOME": str(state),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "PACELINE_MODEL_NAME": "tiny",
        "PACELINE_KV_BYTES": str(64 << 20),
        "PACELINE_KVSTORE_BYTES": str(64 << 20),
        "PACELINE_FAKE_STEP_S": str(step_s),
        **(env or {}),
    }
    with output.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "paceline.cli",
                "up",
                "--model",
                str(model),
                "--port",
                "0",
                "--engine",
                engine,
            ),
            *flags,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            env=settings,
        )
    try:
        url = await _base_url(process, output)
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as session:
            system = System(process, session, state, settings)
            await system.healthy()
            yield system
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _base_url(process: asyncio.subprocess.Process, output: Path) -> str:
    """From the line that `up` prints when it serves."""
    async with asyncio.timeout(START_S):
        while process.returncode is None:
            if found := re.search(r"at (http://127\.0\.0\.1:\d+)/v1", output.read_text()):
                return found.group(1)
            await asyncio.sleep(0.05)
    raise AssertionError(f"paceline up ended with status {process.returncode}: {output.read_text()}")

"""Scripted workers with a gateway in front of them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp

from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts.messages import Load, Role
from paceline.gateway.service import Gateway
from paceline.gateway.settings import Settings
from tests.helpers import serving, until
from tests.service.gateway_worker import Script, Worker

Connect: TypeAlias = Callable[[], Awaitable[Bus]]


class ScriptedMesh:
    """Workers by name, and an HTTP client of the gateway."""

    gateway: Gateway
    http: aiohttp.ClientSession

    def __init__(self, connect: Connect, script: Script) -> None:
        self._connect, self.script = connect, script
        self.workers: list[Worker] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    async def add(self, role: Role, name: str, *, load: Load | None = None) -> Worker:
        worker = Worker(await self._connect(), role, name, self.script, self.workers)
        worker.load = load or Load()
        self.workers.append(worker)
        await worker.start()
        return worker

    def worker(self, name: str) -> Worker:
        return next(w for w in self.workers if w.identity.worker == name)

    def body(self, content: str = "hi", **fields: Any) -> dict[str, Any]:
        """A request body. The template adds 41 tokens to `content`."""
        return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}

    def post(self, content: str = "hi", **fields: Any) -> Any:
        """POST a chat completion; use it as a context manager."""
        return self.http.post(f"{self.url}/v1/chat/completions", json=self.body(content, **fields))

    def post_to(self, path: str, **body: Any) -> Any:
        """POST any body; use it as a context manager."""
        return self.http.post(self.url + path, json=body)

    @property
    def live(self) -> dict[str, dict[str, int]]:
        """What workers still hold, by worker."""
        return {w.identity.worker: w.live for w in self.workers if w.live}

    async def idle(self, *, timeout: float = 5.0) -> None:
        """Wait until nobody holds anything for any request."""
        await until(lambda: not self.live and self.gateway.load() == Load(), timeout=timeout)


LONG = "x" * 400
"""A prompt that takes the handoff."""


@asynccontextmanager
async def scripted_mesh(
    broker: MemoryBroker | NatsServer,
    model: Path,
    script: Script,
    *,
    prefill: int = 1,
    decode: int = 1,
    **settings: Any,
) -> AsyncIterator[ScriptedMesh]:
    """A gateway with so many workers of each role: p0, p1, ... and d0, d1, ..."""

    async def connect() -> Bus:
        if isinstance(broker, NatsServer):
            return await NatsBus.connect(broker.url, name="test")
        return broker.client()

    mesh = ScriptedMesh(connect, script)
    options = Settings(
        model=str(model), model_name="m", port=0, **{"failover_wait_s": 0.5, "max_running": 8, **settings}
    )
    async with serving(await connect(), "gateway", lambda c: Gateway(c, options), "g") as gateway:
        mesh.gateway = gateway
        for i in range(prefill):
            await mesh.add("prefill", f"p{i}")
        for i in range(decode):
            await mesh.add("decode", f"d{i}")
        async with aiohttp.ClientSession() as mesh.http:
            try:
                yield mesh
            finally:
                for worker in mesh.workers:
                    await worker.kill()
                    await worker.bus.close()

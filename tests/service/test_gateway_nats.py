"""The gateway on a real NATS server."""

import asyncio
import json
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from paceline.bus.server import NatsServer
from paceline.contracts.messages import Generate
from tests.helpers import until
from tests.service.gateway_mesh import LONG, ScriptedMesh, scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import Script

TEXT = "Hello, wörld 😀!"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


async def read_text(response: aiohttp.ClientResponse) -> str:
    """The text of a stream that ends well."""
    assert response.status == 200
    lines = [x for x in (await response.text()).splitlines() if x.startswith("data: {")]
    choices = [json.loads(x.removeprefix("data: "))["choices"][0] for x in lines]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    return "".join(c["delta"].get("content", "") for c in choices)


async def ready(mesh: ScriptedMesh) -> None:
    """Wait until the gateway knows its workers."""

    async def status() -> int:
        async with mesh.http.get(f"{mesh.url}/health") as response:
            return int(response.status)

    async with asyncio.timeout(5):
        while await status() != 200:
            await asyncio.sleep(0.01)


async def test_a_lost_frame_on_a_real_server(nats_server: NatsServer, model: Path) -> None:
    async with scripted_mesh(nats_server, model, Script(lose={0, 4})) as mesh:
        await ready(mesh)
        async with mesh.post(LONG, stream=True) as response:
            assert await read_text(response) == TEXT
        await mesh.idle()


async def test_a_stream_survives_the_death_of_the_server(nats_server: NatsServer, model: Path) -> None:
    """What was published meanwhile may be lost; it is sent again, by the same workers, to the same client."""
    script = Script(hold_at=8)
    async with scripted_mesh(nats_server, model, script) as mesh:
        await ready(mesh)
        async with mesh.post(LONG, stream=True) as response:  # returns with the first token
            os.kill(nats_server.pid, signal.SIGKILL)
            script.decode.set()
            await until(lambda: not any(w.bus.connected for w in mesh.workers))
            await nats_server.start(nats_server.port)
            assert await read_text(response) == TEXT
        assert [m.work.attempt for m in mesh.worker("d0").messages(Generate)] == [1]
        await mesh.idle(timeout=10.0)


async def test_a_client_may_leave_while_the_server_is_away(nats_server: NatsServer, model: Path) -> None:
    """The workers hear of it when the server is back."""
    script = Script(hold_at=8)
    async with scripted_mesh(nats_server, model, script) as mesh:
        await ready(mesh)
        async with mesh.post(LONG, stream=True) as response:
            os.kill(nats_server.pid, signal.SIGKILL)
            await until(lambda: not any(w.bus.connected for w in mesh.workers))
            response.close()
        await until(lambda: mesh.gateway.load().running == 0)
        assert mesh.live
        await nats_server.start(nats_server.port)
        await mesh.idle(timeout=10.0)


async def test_a_server_that_hangs_costs_nobody_an_attempt(nats_server: NatsServer, model: Path) -> None:
    """The connection looks alive and nothing comes: a stream goes on afterwards where it was, a request that came
    just before or meanwhile is answered by the workers that it was sent to."""
    script = Script(hold_at=8)
    async with scripted_mesh(nats_server, model, script, failover_wait_s=10.0) as mesh:
        await ready(mesh)

        async def chat() -> str:
            async with mesh.post(LONG, stream=True) as response:
                return await read_text(response)

        running = asyncio.create_task(chat())
        await until(lambda: bool(mesh.worker("d0").live))
        os.kill(nats_server.pid, signal.SIGSTOP)
        script.decode.set()
        before = asyncio.create_task(chat())
        # Time is what is tested: long enough for two asks to fail, and for a worker to be called lost.
        await asyncio.sleep(2.0)
        meanwhile = asyncio.create_task(chat())
        await asyncio.sleep(2.0)
        os.kill(nats_server.pid, signal.SIGCONT)
        assert [await running, await before, await meanwhile] == [TEXT] * 3
        assert [m.work.attempt for m in mesh.worker("d0").messages(Generate)] == [1, 1, 1]
        await mesh.idle(timeout=10.0)


async def test_a_server_that_hangs_for_longer_than_a_request_waits_is_a_503(
    nats_server: NatsServer, model: Path
) -> None:
    async with scripted_mesh(nats_server, model, Script(), failover_wait_s=0.5) as mesh:
        await ready(mesh)
        os.kill(nats_server.pid, signal.SIGSTOP)
        for _ in range(2):
            async with mesh.post(LONG) as response:
                assert response.status == 503
                assert (await response.json())["error"]["message"] == "the mesh does not answer"
        os.kill(nats_server.pid, signal.SIGCONT)
        await mesh.idle(timeout=10.0)
        async with mesh.post(LONG) as response:
            assert response.status == 200
        await mesh.idle()

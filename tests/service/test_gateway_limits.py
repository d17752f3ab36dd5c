"""What a gateway refuses, when it refuses, and what leaving clients give back."""

import asyncio
import http.client
import io
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Cancel, Generate, Load, Prefill
from paceline.gateway.service import Gateway
from paceline.gateway.settings import Settings
from paceline.model.tokenizer import Tokenizer
from tests.helpers import serving, settle, until
from tests.service.gateway_mesh import LONG, ScriptedMesh, scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import Script


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def nothing_reached_workers(mesh: ScriptedMesh) -> bool:
    return not any(w.received for w in mesh.workers)


async def error_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    assert response.headers["x-request-id"]
    error = (await response.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_value", None),
        (b"[]", 400, "invalid_value", None),
        (b"\xff\xfe", 400, "invalid_value", None),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": 1}]}, 400, "invalid_value", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "raise"}]}, 400, "invalid_value", "messages"),
        ({"model": "other"}, 404, "model_not_found", None),
        ({"temperature": 9}, 400, "invalid_value", "temperature"),
        ({"logit_bias": {"258": 1}}, 400, "invalid_value", "logit_bias"),
        ({"messages": [{"role": "user", "content": "x" * 4096}]}, 400, "context_length_exceeded", "messages"),
    ],
)
async def test_bad_input_is_refused_before_any_worker_hears_of_it(
    memory_broker: MemoryBroker, model: Path, body: Any, status: int, code: str, param: str | None
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        data = body if isinstance(body, bytes) else json.dumps({**mesh.body(), **body}).encode()
        async with mesh.http.post(f"{mesh.url}/v1/chat/completions", data=data) as response:
            assert response.status == status
            error = await error_of(response)
        assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
        if code == "context_length_exceeded":
            assert "maximum context length is 4096 tokens" in error["message"]
        assert nothing_reached_workers(mesh)
        assert mesh.gateway.load() == Load()


async def test_a_prompt_longer_than_the_page_pool_is_refused(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script(), decode=0) as mesh:
        await mesh.add("decode", "d0", load=Load(pages_total=4))
        async with mesh.post("x" * 300) as response:
            assert response.status == 400
            assert "maximum context length is 256 tokens" in (await error_of(response))["message"]
        assert nothing_reached_workers(mesh)


async def test_a_text_that_cannot_fit_is_refused_without_being_tokenized(
    memory_broker: MemoryBroker, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Tokenizer, text: str) -> list[int]:
        raise AssertionError("tokenized")

    monkeypatch.setattr(Tokenizer, "encode", encode)
    async with scripted_mesh(memory_broker, model, Script()) as mesh, mesh.post("x" * 200_000) as response:
        assert response.status == 400
        assert (await error_of(response))["code"] == "context_length_exceeded"


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_refused(
    memory_broker: MemoryBroker, model: Path, announced: bool
) -> None:
    async def chunks() -> Any:
        for _ in range(10):
            yield b" " * (1 << 20)

    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        data = io.BytesIO(b" " * (10 << 20)) if announced else chunks()
        async with mesh.http.post(f"{mesh.url}/v1/chat/completions", data=data) as response:
            assert response.status == 413
            assert (await error_of(response))["code"] == "request_too_large"
        async with mesh.post() as response:
            assert response.status == 200
        await mesh.idle()


async def test_a_client_that_sends_all_of_its_body_first_still_reads_the_answer(
    memory_broker: MemoryBroker, model: Path
) -> None:
    def post(port: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", "/v1/chat/completions", b" " * (10 << 20))
        status = connection.getresponse().status
        connection.close()
        return status

    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        assert await asyncio.to_thread(post, mesh.gateway.port) == 413


async def test_an_announced_length_is_refused_before_the_body_is_sent(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
        async with asyncio.timeout(2):
            assert b" 413 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_body_that_does_not_come_is_given_up(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), body_timeout_s=0.1) as mesh:
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"model"')
        async with asyncio.timeout(2):
            assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        await mesh.idle()


async def test_bodies_that_do_not_come_keep_nobody_out(memory_broker: MemoryBroker, model: Path) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    limits = {"max_running": 2, "max_queue": 0, "max_uploads": 4}
    async with scripted_mesh(memory_broker, model, Script(), **limits) as mesh:
        idle = [await asyncio.open_connection("127.0.0.1", mesh.gateway.port) for _ in range(8)]
        for _, writer in idle:
            writer.write(head)
        await until(lambda: mesh.gateway.load().waiting == 4)

        async def status() -> int:
            async with mesh.post() as response:
                return int(response.status)

        async with asyncio.timeout(3):
            while await status() == 429:
                await asyncio.sleep(0.1)
        assert await status() == 200
        assert mesh.gateway.load().waiting == 3
        for _, writer in idle:
            writer.transport.abort()
        await mesh.idle()
        await settle()


async def test_headers_that_do_not_come_are_given_up(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), idle_timeout_s=0.2) as mesh:
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-A: ")
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_request_whose_body_comes_while_the_gateway_drains_is_refused(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        body = json.dumps(mesh.body()).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        await until(lambda: mesh.gateway.load().waiting == 1)
        await mesh.gateway.drain()
        writer.write(body)
        async with asyncio.timeout(2):
            assert b" 503 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_body_with_a_broken_encoding_is_refused(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        url, headers = f"{mesh.url}/v1/chat/completions", {"Content-Encoding": "gzip"}
        async with mesh.http.post(url, data=b"not gzip at all", headers=headers) as response:
            assert response.status == 400


async def test_errors_of_http_have_openais_shape(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.http.get(f"{mesh.url}/v1/nothing") as response:
            assert (response.status, (await error_of(response))["code"]) == (404, "not_found")
        async with mesh.http.get(f"{mesh.url}/v1/chat/completions") as response:
            assert (response.status, (await error_of(response))["code"]) == (405, "method_not_allowed")
            assert response.headers["Allow"] == "POST"


async def test_beyond_the_queue_requests_are_refused_with_a_time_to_come_back(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=3)
    async with scripted_mesh(memory_broker, model, script, max_running=2, max_queue=1) as mesh:

        async def status(content: str) -> int:
            async with mesh.post(content) as response:
                await response.read()
                return int(response.status)

        tasks = [asyncio.create_task(status("hi")) for _ in range(3)]
        await until(lambda: mesh.gateway.load().waiting == 1 and mesh.gateway.load().running == 2)
        await until(lambda: len(mesh.worker("d0").live) == 2)
        async with mesh.post("x" * 100_000) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1
            error = await error_of(response)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        script.decode.set()
        assert await asyncio.gather(*tasks) == [200, 200, 200]
        await mesh.idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("content", [LONG, "hi"], ids=["handoff", "local"])
@pytest.mark.parametrize("phase", ["body", "queue", "prompt", "decode"])
async def test_a_client_that_leaves_frees_everything_at_once(
    memory_broker: MemoryBroker, model: Path, stream: bool, content: str, phase: str
) -> None:
    script = Script(hold_at=5)
    if phase == "prompt":
        script.prompt.clear()
    async with scripted_mesh(memory_broker, model, script, max_running=1) as mesh:
        body = json.dumps(mesh.body(content, stream=stream)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        others = []
        if phase == "queue":
            others = [asyncio.create_task(mesh.post(LONG).__aenter__())]
            await until(lambda: mesh.gateway.load().running == 1)
        _, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(head + (body[:-5] if phase == "body" else body))
        waits, runs = (1, 0) if phase in ("body", "queue") else (0, 1)
        await until(lambda: mesh.gateway.load().waiting == waits)
        await until(lambda: mesh.gateway.load().running == runs + len(others))
        if runs:
            await until(lambda: bool(mesh.live))
            await settle()
        taken = {m.work.request_id for w in mesh.workers for m in w.messages(Generate)}
        writer.transport.abort()
        await until(lambda: mesh.gateway.load().waiting == 0, timeout=1.0)
        if phase == "queue":
            assert {m.work.request_id for w in mesh.workers for m in w.messages(Generate)} == taken
            script.decode.set()
            (await others[0]).release()
        await mesh.idle(timeout=1.0)
        if runs:
            cancels = [m for w in mesh.workers for m in w.messages(Cancel)]
            assert len(cancels) == (2 if content == LONG else 1)
        script.decode.set()
        script.prompt.set()
        async with mesh.post(content) as response:  # the next request is none the worse
            assert response.status == 200
        await mesh.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_noticed_behind_requests_that_nobody_reads(
    memory_broker: MemoryBroker, model: Path, stream: bool
) -> None:
    async with scripted_mesh(memory_broker, model, Script(hold_at=5)) as mesh:
        body = json.dumps(mesh.body(LONG, stream=stream)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: len(mesh.live) == 2)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 100_000)
        await settle()
        writer.transport.abort()
        await mesh.idle(timeout=3.0)
        await settle()


async def test_many_requests_with_clients_that_leave_at_any_time(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script(), prefill=2, decode=2, max_running=4) as mesh:

        async def leave_after(seconds: float, content: str, stream: bool) -> None:
            try:
                async with asyncio.timeout(seconds), mesh.post(content, stream=stream) as response:
                    await response.read()
            except TimeoutError:
                pass

        jobs = [leave_after(0.002 * (i % 25), LONG if i % 2 else "hi", bool(i % 3)) for i in range(200)]
        await asyncio.gather(*jobs)
        await mesh.idle()
        async with mesh.http.get(f"{mesh.url}/metrics") as response:
            assert "paceline_leaks 0.0" in (await response.text()).splitlines()


async def test_a_drain_lets_running_requests_finish_and_refuses_new_ones(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=5)
    async with scripted_mesh(memory_broker, model, script) as mesh:

        async def text() -> str:
            async with mesh.post(LONG, stream=True) as response:
                return str(await response.text())

        running = asyncio.create_task(text())
        await until(lambda: bool(mesh.live))
        draining = asyncio.create_task(mesh.gateway.drain())
        await settle()
        async with mesh.post() as response:
            assert response.status == 503
        async with mesh.http.get(f"{mesh.url}/health") as response:
            assert "gateway: draining" in (await response.json())["missing"]
        assert not draining.done()
        script.decode.set()
        assert (await running).endswith("data: [DONE]\n\n")
        await draining


async def test_a_gateway_that_is_stopped_tells_the_workers(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script(hold_at=5)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        response = await mesh.post(LONG, stream=True).__aenter__()
        await mesh.gateway.close()
        assert not mesh.live
        assert mesh.gateway.load() == Load()
        response.close()


async def test_a_taken_port_is_one_clear_error(memory_broker: MemoryBroker, model: Path) -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Settings(model=str(model), port=port)
    with pytest.raises(InvalidRequest, match=f"cannot listen on 127.0.0.1:{port}"):
        async with serving(memory_broker.client(), "gateway", lambda c: Gateway(c, settings)):
            pass
    server.close()
    await server.wait_closed()


async def test_beyond_loopback_without_keys_is_refused(memory_broker: MemoryBroker, model: Path) -> None:
    settings = Settings(model=str(model), host="0.0.0.0", port=0)
    with pytest.raises(InvalidRequest, match="PACELINE_API_KEYS"):
        async with serving(memory_broker.client(), "gateway", lambda c: Gateway(c, settings)):
            pass


async def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="PACELINE_MAX_RUNNING must be at least 1"):
        Settings(model="m", max_running=0)
    with pytest.raises(InvalidRequest, match="PACELINE_KEEP_ALIVE_S must be greater than 0"):
        Settings(model="m", keep_alive_s=0)


async def test_prompts_are_dispatched_once(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), prefill=3, decode=3) as mesh:
        for _ in range(5):
            async with mesh.post(LONG) as response:
                assert response.status == 200
        assert sum(len(w.messages(Prefill)) for w in mesh.workers) == 5
        assert sum(len(w.messages(Generate)) for w in mesh.workers) == 5
        await mesh.idle()


async def test_a_stream_that_outlasts_the_drain_ends_with_an_error_and_not_with_a_cut(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=5)
    async with scripted_mesh(memory_broker, model, script, max_running=1) as mesh:
        running = asyncio.create_task(_text(mesh, stream=True))
        await until(lambda: bool(mesh.live))
        queued = asyncio.create_task(_text(mesh, stream=False))
        await until(lambda: mesh.gateway.load().waiting == 1)
        await mesh.gateway.close()
        lines = (await running).splitlines()
        assert lines[-2] == "data: [DONE]"
        assert json.loads(lines[-4].removeprefix("data: "))["error"]["type"] == "server_error"
        assert json.loads(await queued)["error"]["code"] == "service_unavailable"


async def _text(mesh: ScriptedMesh, *, stream: bool) -> str:
    async with mesh.post(LONG, stream=stream) as response:
        return str(await response.text())

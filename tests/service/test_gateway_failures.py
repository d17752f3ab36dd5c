"""Chat completions while messages are lost and workers refuse, fail and die: one end, and no seam."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts import errors as e
from paceline.contracts.messages import CachedTokens, Cancel, Generate, Prefill, Resend
from tests.helpers import settle, until
from tests.service.gateway_mesh import LONG, ScriptedMesh, scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import Script, Worker

TEXT = "Hello, wörld 😀!"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


async def read_text(response: aiohttp.ClientResponse) -> str:
    """The text of a stream that ends well, with exactly one finish_reason and one [DONE]."""
    assert response.status == 200, await response.text()
    data = [
        line.removeprefix("data: ")
        for line in (await response.text()).splitlines()
        if line.startswith("data")
    ]
    assert data.pop() == "[DONE]"
    choices = [c for d in data for c in json.loads(d)["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    return "".join(c["delta"].get("content", "") for c in choices)


async def chat(mesh: ScriptedMesh, content: str = LONG) -> str:
    """The text of a streamed answer."""
    async with mesh.post(content, stream=True) as response:
        return await read_text(response)


async def chatting(mesh: ScriptedMesh, content: str = LONG) -> tuple["asyncio.Task[str]", dict[str, Worker]]:
    """A chat that has come as far as the script lets it, and the workers of its first attempt by role."""
    task = asyncio.create_task(chat(mesh, content))
    wanted = {"decode", "prefill"} if content == LONG else {"decode"}
    await until(lambda: {w.identity.role for w in mesh.workers if w.live} == wanted)
    await settle()
    return task, {w.identity.role: w for w in mesh.workers if w.live}


def generated(mesh: ScriptedMesh) -> list[Generate]:
    """Every attempt that a decode worker was given, in order."""
    return sorted((m for w in mesh.workers for m in w.messages(Generate)), key=lambda m: m.work.attempt)


@pytest.mark.parametrize("lose", [{0}, {1}, {5, 6}, {19}, {0, 1, 18}])
async def test_lost_frames_are_sent_again(memory_broker: MemoryBroker, model: Path, lose: set[int]) -> None:
    async with scripted_mesh(memory_broker, model, Script(lose=set(lose))) as mesh:
        async with mesh.post(LONG, stream=True) as response:
            assert await read_text(response) == TEXT
        assert sum(len(w.messages(Resend)) for w in mesh.workers) >= 1
        assert [m.work.attempt for w in mesh.workers for m in w.messages(Generate)] == [1]
        await mesh.idle()


@pytest.mark.parametrize("event", ["Started", "Done"])
async def test_a_lost_event_is_sent_again(memory_broker: MemoryBroker, model: Path, event: str) -> None:
    script = Script(lose_events={event}, cached=CachedTokens(device=64))
    async with scripted_mesh(memory_broker, model, script) as mesh:
        async with mesh.post(LONG) as response:
            body = await response.json()
        assert body["choices"][0]["message"]["content"] == TEXT
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
        await mesh.idle()


@pytest.mark.parametrize("how", ["kill", "leave"])
@pytest.mark.parametrize("victim", ["prefill", "decode"])
async def test_a_worker_that_dies_while_the_prompt_runs_is_replaced(
    memory_broker: MemoryBroker, model: Path, how: str, victim: str
) -> None:
    script = Script()
    script.prompt.clear()
    async with scripted_mesh(memory_broker, model, script, prefill=2, decode=2) as mesh:
        task, workers = await chatting(mesh)
        await getattr(workers[victim], how)()
        await until(lambda: len(generated(mesh)) == 2)
        script.prompt.set()
        assert await task == TEXT
        first, second = generated(mesh)
        assert (second.work.attempt, second.work.output) == (2, [])
        assert second.source.transfer_id != first.source.transfer_id  # type: ignore[union-attr]
        await mesh.idle()
        survivor = workers["prefill" if victim == "decode" else "decode"]
        assert Cancel(request_id=first.work.request_id, attempt=1) in survivor.received


@pytest.mark.parametrize("how", ["kill", "leave"])
@pytest.mark.parametrize("content", [LONG, "hi"], ids=["handoff", "local"])
async def test_a_decode_worker_that_dies_in_mid_stream_is_replaced_without_a_seam(
    memory_broker: MemoryBroker, model: Path, how: str, content: str
) -> None:
    script = Script(hold_at=8, cached=CachedTokens(host=64))
    async with scripted_mesh(memory_broker, model, script, prefill=1, decode=2) as mesh:
        task, workers = await chatting(mesh, content)
        script.hold_at = 1 << 30
        script.cached = CachedTokens()
        await getattr(workers["decode"], how)()
        assert await task == TEXT
        first, second = generated(mesh)
        assert (second.work.attempt, second.work.output) == (2, script.answer[:8])
        assert second.work.prompt == first.work.prompt
        assert second.work.sampling == first.work.sampling
        await mesh.idle()


async def test_the_only_decode_worker_may_come_back(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script, failover_wait_s=10.0) as mesh:
        task, workers = await chatting(mesh)
        script.hold_at = 1 << 30
        await workers["decode"].leave()
        await mesh.add("decode", "d0")
        assert await task == TEXT
        await mesh.idle()


async def test_a_restarted_worker_is_another_one(memory_broker: MemoryBroker, model: Path) -> None:
    """Its first beacon says that everything it held is gone, long before silence would."""
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        script.hold_at = 1 << 30
        await workers["decode"].kill()
        began = asyncio.get_running_loop().time()
        await mesh.add("decode", "d0")
        assert await task == TEXT
        assert asyncio.get_running_loop().time() - began < 0.9
        await mesh.idle()


async def test_prefill_may_die_once_decode_goes_on(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        await workers["prefill"].leave()
        script.decode.set()
        assert await task == TEXT
        assert len(generated(mesh)) == 1
        await mesh.idle()


async def test_a_retryable_failure_is_retried_on_the_same_worker_when_there_is_no_other(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        script.hold_at = 1 << 30
        await workers["decode"].fail("integrity")
        assert await task == TEXT
        assert [g.work.attempt for g in generated(mesh)] == [1, 2]
        await mesh.idle()


async def test_a_decode_worker_that_lost_its_prefill_worker_is_not_to_blame(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script()
    script.prompt.clear()
    async with scripted_mesh(memory_broker, model, script, prefill=2, decode=2) as mesh:
        task, workers = await chatting(mesh)
        await workers["decode"].fail("worker_lost")
        await until(lambda: len(generated(mesh)) == 2)
        script.prompt.set()
        assert await task == TEXT
        assert [m.work.attempt for m in workers["decode"].messages(Generate)] == [1, 2]
        assert [m.work.attempt for m in workers["prefill"].messages(Prefill)] == [1]
        await mesh.idle()


async def test_failures_without_end_become_an_error_event_and_done(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        async with mesh.post(LONG, stream=True) as response:
            assert response.status == 200
            script.prompt.clear()
            d = mesh.worker("d0")
            for attempt in (1, 2, 3, 4):
                await until(lambda n=attempt: n in d.live.values())  # type: ignore[misc]
                await settle()
                await d.fail("worker_lost")
            data = [
                x.removeprefix("data: ") for x in (await response.text()).splitlines() if x.startswith("data")
            ]
        assert data[-1] == "[DONE]"
        error = json.loads(data[-2])["error"]
        assert (error["type"], error["code"]) == ("server_error", "worker_lost")
        reasons = [c["finish_reason"] for x in data[:-2] for c in json.loads(x)["choices"]]
        assert set(reasons) == {None}
        await mesh.idle()


@pytest.mark.parametrize(
    ("error", "status", "code", "attempts"),
    [
        (e.Busy("full", retry_after_s=2.5), 429, "rate_limit_exceeded", 1),
        (e.Unavailable("draining"), 503, "service_unavailable", 4),
        (e.ContextTooLong("maximum context length is 5 tokens"), 400, "context_length_exceeded", 1),
        (e.InternalError("secret detail"), 500, "internal", 4),
    ],
)
async def test_what_workers_refuse_with_becomes_the_status(
    memory_broker: MemoryBroker, model: Path, error: e.PacelineError, status: int, code: str, attempts: int
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        d = mesh.worker("d0")
        d.refuse = error
        async with mesh.post(LONG, stream=True) as response:
            assert response.status == status
            body = (await response.json())["error"]
        assert body["code"] == code
        assert "secret" not in body["message"]
        if status == 429:
            assert response.headers["Retry-After"] == "3"
        assert len(d.messages(Generate)) == attempts
        await mesh.idle()


async def test_a_worker_that_refuses_is_passed_over(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), prefill=2, decode=2) as mesh:
        for name in ("p0", "d0"):
            mesh.worker(name).refuse = e.Unavailable("draining")
        for _ in range(4):
            assert await chat(mesh) == TEXT
        await mesh.idle()


async def test_a_worker_that_does_not_acknowledge_is_passed_over_and_told_to_forget(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script(), decode=2) as mesh:
        for w in mesh.workers:
            w.silent = w.identity.role == "decode"
        task = asyncio.create_task(chat(mesh))
        await until(lambda: any(w.messages(Generate) for w in mesh.workers))
        mute = next(w for w in mesh.workers if w.messages(Generate))
        next(w for w in mesh.workers if w.identity.role == "decode" and w is not mute).silent = False
        assert await task == TEXT
        await mesh.idle()
        (message,) = mute.messages(Generate)
        assert Cancel(request_id=message.work.request_id, attempt=1) in mute.received


async def test_a_long_silence_that_a_worker_answers_for_is_no_failure(
    memory_broker: MemoryBroker, model: Path
) -> None:
    """A prompt may take long: every second both workers are asked, and both know the request."""
    script = Script()
    script.prompt.clear()
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        await until(lambda: len(workers["prefill"].messages(Resend)) >= 2)
        assert len(workers["decode"].messages(Resend)) >= 1
        script.prompt.set()
        assert await task == TEXT
        assert len(generated(mesh)) == 1
        await mesh.idle()


async def test_a_worker_that_forgot_the_request_is_lost_to_it(
    memory_broker: MemoryBroker, model: Path
) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        script.hold_at = 1 << 30
        workers["decode"].live.clear()
        assert await task == TEXT
        assert [g.work.attempt for g in generated(mesh)] == [1, 2]
        await mesh.idle()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prompt", "decode"])
async def test_the_deadline_ends_every_request(
    memory_broker: MemoryBroker, model: Path, stream: bool, phase: str
) -> None:
    script = Script(hold_at=8)
    if phase == "prompt":
        script.prompt.clear()
    async with scripted_mesh(memory_broker, model, script, request_timeout_s=0.3) as mesh:
        async with mesh.post(LONG, stream=stream) as response:
            begun = stream and phase == "decode"
            assert response.status == (200 if begun else 504)
            text = await response.text()
        if begun:
            *_, last, done, rest = text.split("\n\n")
            assert (done, rest) == ("data: [DONE]", "")
            text = last.removeprefix("data: ")
        assert json.loads(text)["error"]["code"] == "timeout"
        await mesh.idle()


async def test_a_silent_stream_is_kept_alive(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script()
    script.prompt.clear()
    async with (
        scripted_mesh(memory_broker, model, script, keep_alive_s=0.05) as mesh,
        mesh.post(LONG, stream=True) as response,
    ):
        first = await response.content.readuntil(b": keep-alive\n\n")
        assert b'"role":"assistant"' in first
        await response.content.readuntil(b": keep-alive\n\n")
        script.prompt.set()
        rest = (await response.text()).replace(": keep-alive\n\n", "")
        assert rest.endswith("data: [DONE]\n\n")
        assert '"role"' not in rest


async def test_unreadable_and_unknown_messages_are_ignored(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script(hold_at=8)
    async with scripted_mesh(memory_broker, model, script) as mesh:
        task, workers = await chatting(mesh)
        (message,) = workers["prefill"].messages(Prefill)
        subject = f"paceline.gw.{message.work.gateway}"
        for data in (b"", b"{", b"\xa7", b"\xa7\x09", b'{"type":"nonsense"}'):
            await workers["decode"].bus.publish(subject, data)
        script.decode.set()
        assert await task == TEXT
        await mesh.idle()

"""Chat completions through a gateway: what clients get when all goes well."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.bus.memory import MemoryBroker
from paceline.contracts.hashing import tenant_salt
from paceline.contracts.messages import CachedTokens, Confirm, Generate, LocalPrefill, Prefill, RemotePrefill
from paceline.gateway import eventstream
from tests.service.gateway_mesh import LONG, scripted_mesh
from tests.service.gateway_model import EOS, tokens_of, write_model
from tests.service.gateway_worker import Script

TEXT = "Hello, wörld 😀!"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


async def events_of(response: aiohttp.ClientResponse) -> list[Any]:
    """The decoded events of a stream, and "[DONE]"."""
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    events = (await response.text()).split("\n\n")
    assert events.pop() == ""
    data = [e.removeprefix("data: ") for e in events if not e.startswith(":")]
    return [d if d == "[DONE]" else json.loads(d) for d in data]


def text_of(events: list[Any]) -> str:
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]" and e["choices"]]
    return "".join(d.get("content", "") for d in deltas)


async def test_a_whole_answer_with_what_it_cost(memory_broker: MemoryBroker, model: Path) -> None:
    script = Script(cached=CachedTokens(device=64, host=128))
    async with scripted_mesh(memory_broker, model, script) as mesh:
        async with mesh.post(LONG) as response:
            assert response.status == 200
            body = await response.json()
            request_id = response.headers["x-request-id"]
        prompt = len(f"<user\n{LONG}><assistant\n")
        assert body["id"] == f"chatcmpl-{request_id}"
        assert (body["object"], body["model"]) == ("chat.completion", "m")
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        usage = body["usage"]
        tokens = len(tokens_of(TEXT)) + 1
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt, tokens)
        assert usage["total_tokens"] == prompt + tokens
        assert usage["prompt_tokens_details"] == {"cached_tokens": 192}
        stages = usage["paceline"]["stages"]
        assert (stages["prefill"], stages["decode_step"]) == (0.5, 0.25)
        assert stages["queue"] >= 0.25
        await mesh.idle()


async def test_a_stream_in_openais_order(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post(LONG, stream=True, stream_options={"include_usage": True}) as response:
            events = await events_of(response)
        assert events[-1] == "[DONE]"
        first, *content, finish, usage = events[:-1]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert all(e["choices"][0]["delta"]["content"] for e in content)
        assert all(e["choices"][0]["finish_reason"] is None for e in (first, *content))
        assert (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"]) == ({}, "stop")
        assert [e["usage"] for e in (first, *content, finish)] == [None] * (len(content) + 2)
        assert (usage["choices"], usage["usage"]["prompt_tokens_details"]) == ([], {"cached_tokens": 0})
        assert len({e["id"] for e in events[:-1]}) == 1
        assert text_of(events) == TEXT
        await mesh.idle()


async def test_a_client_that_does_not_keep_up_gets_the_same(
    memory_broker: MemoryBroker, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventstream, "_BEHIND_BYTES", 0)  # as if every client were behind
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post(LONG, stream=True) as response:
            assert text_of(await events_of(response)) == TEXT
        await mesh.idle()


async def test_a_client_without_chunks_gets_the_events_alone(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        body = json.dumps(mesh.body(stream=True)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", mesh.gateway.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, events = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        assert "chunked" not in head
        lines = events.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        assert text_of([json.loads(line.removeprefix("data: ")) for line in lines[:-2]]) == TEXT
        await mesh.idle()


async def test_without_include_usage_no_chunk_has_one(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post(stream=True) as response:
            events = await events_of(response)
        assert all("usage" not in e for e in events[:-1])
        assert text_of(events) == TEXT


async def test_a_long_prompt_is_handed_over_and_a_short_one_is_not(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        p, d = mesh.workers
        async with mesh.post("hi", seed=7, temperature=0) as response:
            assert response.status == 200
        async with mesh.post(LONG, draft=False) as response:
            assert response.status == 200
        local, remote = d.messages(Generate)
        (prefill,) = p.messages(Prefill)
        assert isinstance(local.source, LocalPrefill)
        assert (local.draft, remote.draft) == (True, False)
        assert isinstance(remote.source, RemotePrefill)
        assert (remote.source.worker, remote.source.incarnation) == ("p0", p.identity.incarnation)
        assert remote.source.transfer_id == prefill.transfer_id
        assert len(bytes.fromhex(prefill.transfer_id)) == 16
        assert remote.work == prefill.work
        work = local.work
        assert bytes(t for t in work.prompt if t < 256) == b"user\nhiassistant\n"
        assert (work.attempt, work.tenant, work.output) == (1, "default", [])
        assert work.salt == tenant_salt("default")
        assert (work.sampling.seed, work.sampling.temperature) == (7, 0)
        assert work.sampling.max_tokens == 4096 - len(work.prompt)
        await mesh.idle()
        assert [c.request_id for c in p.messages(Confirm)] == [prefill.work.request_id]
        assert [c.request_id for c in d.messages(Confirm)] == [work.request_id, prefill.work.request_id]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "text", "reason", "tokens"),
    [
        ({"stop": "wör"}, "Hello, ", "stop", 11),
        ({"stop": ["zzz", "!"]}, "Hello, wörld 😀", "stop", 19),
        ({"max_tokens": 3}, "Hel", "length", 3),
        ({"max_tokens": 1}, "H", "length", 1),
        ({"max_tokens": 16}, "Hello, wörld \ufffd", "length", 16),
    ],
)
async def test_how_an_answer_may_end(
    memory_broker: MemoryBroker,
    model: Path,
    stream: bool,
    fields: dict[str, Any],
    text: str,
    reason: str,
    tokens: int,
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        if stream:
            async with mesh.post(stream=True, stream_options={"include_usage": True}, **fields) as response:
                events = await events_of(response)
            shown, usage = text_of(events), events[-2]["usage"]
            reasons = [e["choices"][0]["finish_reason"] for e in events[:-2]]
            assert [r for r in reasons if r] == [reason]
        else:
            async with mesh.post(**fields) as response:
                body = await response.json()
            shown, usage = body["choices"][0]["message"]["content"], body["usage"]
            assert body["choices"][0]["finish_reason"] == reason
        assert (shown, usage["completion_tokens"]) == (text, tokens)
        await mesh.idle(timeout=1.0)


async def test_a_first_token_may_end_the_answer(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(answer=[EOS])) as mesh:
        async with mesh.post(LONG, stream=True) as response:
            events = await events_of(response)
        assert (text_of(events), events[-2]["choices"][0]["finish_reason"]) == ("", "stop")
        await mesh.idle()


async def test_models_health_and_metrics(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), decode=0) as mesh:
        async with mesh.http.get(f"{mesh.url}/v1/models") as response:
            (entry,) = (await response.json())["data"]
            assert (entry["id"], entry["object"], entry["owned_by"]) == ("m", "model", "paceline")
        async with mesh.http.get(f"{mesh.url}/health") as response:
            assert response.status == 503
            assert (await response.json())["missing"] == ["decode: no worker is ready for m"]
        async with mesh.post() as response:
            assert response.status == 503
            assert (await response.json())["error"]["type"] == "server_error"
            assert response.headers["Retry-After"] == "1"
        await mesh.add("decode", "d0")
        async with mesh.http.get(f"{mesh.url}/health") as response:
            assert (response.status, (await response.json())["status"]) == (200, "ok")
        async with mesh.post() as response:
            assert response.status == 200
        await mesh.idle()
        async with mesh.http.get(f"{mesh.url}/metrics") as response:
            samples = (await response.text()).splitlines()
        assert 'paceline_requests_total{status="200"} 1.0' in samples
        assert 'paceline_requests_total{status="503"} 1.0' in samples
        assert "paceline_leaks 0.0" in samples
        assert "paceline_ttft_seconds_count 1.0" in samples


async def test_with_keys_tenants_are_apart(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script(), api_keys="sk-a,sk-b") as mesh:
        url = f"{mesh.url}/v1/chat/completions"
        for key, status in (("sk-a", 200), ("sk-b", 200), ("sk-c", 401)):
            async with mesh.http.post(
                url, json=mesh.body(), headers={"Authorization": f"Bearer {key}"}
            ) as response:
                assert response.status == status
        async with mesh.http.get(f"{mesh.url}/v1/models") as response:
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
        a, b = mesh.workers[1].messages(Generate)
        assert a.work.tenant != b.work.tenant
        assert a.work.salt != b.work.salt


ANSWERS = st.text(alphabet="ab é😀\n", max_size=24)
STOPS = st.lists(st.text(alphabet="ab é", min_size=1, max_size=3), max_size=2)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=ANSWERS,
    stop=st.lists(st.text(alphabet="ab é", min_size=1, max_size=3), max_size=2),
    cut=st.integers(0, 3),
)
async def test_streamed_deltas_add_up_to_the_whole_text(
    model: Path, answer: str, stop: list[str], cut: int
) -> None:
    """Also where the answer ends inside a character."""
    tokens = tokens_of(answer)
    script = Script(answer=[*tokens[: len(tokens) - cut], EOS])
    async with scripted_mesh(MemoryBroker(), model, script) as mesh:
        async with mesh.post(LONG, stop=stop) as response:
            whole = (await response.json())["choices"][0]
        async with mesh.post(LONG, stop=stop, stream=True) as response:
            events = await events_of(response)
        assert text_of(events) == whole["message"]["content"]
        assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]

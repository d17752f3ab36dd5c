"""All APIs through one gateway: the same tokens in each one's form."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens, Generate
from paceline.gateway.keyfile import new_key
from tests.service.gateway_mesh import LONG, ScriptedMesh, scripted_mesh
from tests.service.gateway_model import EOS, TOOL_TEMPLATE, tokens_of, write_model
from tests.service.gateway_worker import Script

TEXT = "Hello, wörld 😀!"
CALLS = (
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "sub", "arguments": {"b": [2, {}]}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", template=TOOL_TEMPLATE)


def script(text: str, **fields: Any) -> Script:
    return Script(answer=[*tokens_of(text), EOS], **fields)


async def events_of(response: aiohttp.ClientResponse) -> list[Any]:
    """The data of all events, "[DONE]" as it is."""
    assert response.status == 200, await response.text()
    data = [line for line in (await response.text()).splitlines() if line.startswith("data: ")]
    return [d if d == "[DONE]" else json.loads(d) for d in (line.removeprefix("data: ") for line in data)]


async def test_tool_calls_whole_and_streamed(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, script("Sure.\n" + CALLS)) as mesh:
        async with mesh.post(LONG, tools=[TOOL]) as response:
            (choice,) = (await response.json())["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Sure.")
        calls = [c["function"] for c in choice["message"]["tool_calls"]]
        assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [
            ("add", {"a": 1}),
            ("sub", {"b": [2, {}]}),
        ]
        async with mesh.post(LONG, tools=[TOOL], stream=True) as response:
            *events, done = await events_of(response)
        assert done == "[DONE]"
        assert [r for e in events if (r := e["choices"][0]["finish_reason"])] == ["tool_calls"]
        streamed: dict[int, dict[str, Any]] = {}
        for event in events:
            for piece in event["choices"][0]["delta"].get("tool_calls", ()):
                call = streamed.setdefault(piece["index"], {"id": piece.get("id"), "arguments": ""})
                call["arguments"] += piece["function"]["arguments"]
        assert [streamed[i]["arguments"] for i in (0, 1)] == [c["arguments"] for c in calls]
        ids = {c["id"] for c in choice["message"]["tool_calls"]} | {c["id"] for c in streamed.values()}
        assert len(ids) == 4
        await mesh.idle()


async def test_a_length_cut_inside_a_call_is_a_length_cut(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, script(CALLS)) as mesh:
        async with mesh.post(tools=[TOOL], max_tokens=46) as response:
            (choice,) = (await response.json())["choices"]
        async with mesh.post(tools=[TOOL], max_tokens=46, stream=True) as response:
            events = await events_of(response)
        (call,) = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], call["function"]["name"]) == ("length", "add")
        assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_without_tools_a_call_is_text(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, script(CALLS)) as mesh:
        none: dict[str, Any] = {"tools": [TOOL], "tool_choice": "none"}
        for fields in ({}, none):
            async with mesh.post(**fields) as response:
                message = (await response.json())["choices"][0]["message"]
            assert message["content"] == CALLS
            assert "tool_calls" not in message
        # The prompt is the same with and without leave to call, for the cache.
        assert await _prompt_of(mesh, tool_choice="none") == await _prompt_of(mesh, tool_choice="auto")


async def _prompt_of(mesh: ScriptedMesh, **fields: Any) -> list[int]:
    async with mesh.post(tools=[TOOL], **fields) as response:
        assert response.status == 200
    prompt: list[int] = mesh.workers[1].messages(Generate)[-1].work.prompt
    return prompt


async def test_reasoning_is_apart_and_counted(memory_broker: MemoryBroker, model: Path) -> None:
    options: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
    async with scripted_mesh(memory_broker, model, script("hmm</think>\n\nyes")) as mesh:
        async with mesh.post(**options) as response:
            body = await response.json()
        message = body["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hmm", "yes")
        # The closing tag is a byte a token here.
        assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == len("hmm</think>\n\n")


async def test_several_answers_have_seeds_of_their_own_and_one_prompt(
    memory_broker: MemoryBroker, model: Path
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post(LONG, n=3, seed=5) as response:
            body = await response.json()
        assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [
            (i, TEXT) for i in range(3)
        ]
        works = [m.work for m in mesh.workers[1].messages(Generate)]
        assert sorted(w.sampling.seed for w in works) == [5, 6, 7]
        assert len({w.request_id for w in works}) == 3
        tokens = len(tokens_of(TEXT)) + 1
        assert body["usage"]["completion_tokens"] == 3 * tokens
        assert body["usage"]["prompt_tokens"] == len(works[0].prompt)
        async with mesh.post(LONG, n=2, stream=True, stream_options={"include_usage": True}) as response:
            *events, usage, _ = await events_of(response)
        for i in range(2):
            choices = [c for e in events for c in e["choices"] if c["index"] == i]
            assert "".join(c["delta"].get("content", "") for c in choices) == TEXT
            assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
        assert usage["usage"]["completion_tokens"] == 2 * tokens
        await mesh.idle()


async def test_when_one_of_several_answers_fails_all_end(memory_broker: MemoryBroker, model: Path) -> None:
    held = Script(hold_at=3)
    async with scripted_mesh(memory_broker, model, held) as mesh:
        async with mesh.post(n=3, stream=True) as response:
            await response.content.readuntil(b'"l"')
            await mesh.workers[1].fail("invalid_request")
            text = await response.text()
        assert text.count('"error"') == 1
        assert text.endswith("data: [DONE]\n\n")
        await mesh.idle()


async def test_log_probabilities_come_with_their_tokens(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, script("Hi")) as mesh:
        async with mesh.post(logprobs=True, top_logprobs=2) as response:
            (choice,) = (await response.json())["choices"]
        content = choice["logprobs"]["content"]
        assert [(t["token"], t["logprob"], t["bytes"]) for t in content[:2]] == [
            ("H", -72 / 256, [72]),
            ("i", -105 / 256, [105]),
        ]
        assert [a["token"] for a in content[0]["top_logprobs"]] == ["H", "I"]
        async with mesh.post(logprobs=True, stream=True) as response:
            *events, _ = await events_of(response)
        logged = [t for e in events for t in (e["choices"][0]["logprobs"] or {"content": ()})["content"]]
        assert [t["token"] for t in logged] == [t["token"] for t in content]


async def test_a_given_text_is_scored(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, script("Hi")) as mesh:
        async with mesh.post_to(
            "/v1/completions", model="m", prompt=["ab" * 200, "c"], echo=True, logprobs=1, max_tokens=0
        ) as response:
            body = await response.json()
        first, second = body["choices"]
        assert (first["text"], second["text"]) == ("ab" * 200, "c")
        scores = first["logprobs"]
        assert scores["token_logprobs"][:3] == [None, -98 / 256, -97 / 256]
        assert scores["top_logprobs"][:2] == [None, {"b": -98 / 256}]
        assert scores["text_offset"] == list(range(400))
        assert second["logprobs"]["token_logprobs"] == [None]
        assert body["usage"]["completion_tokens"] == 0
        # Long as it is, it runs where its log probabilities can be sent from in one piece.
        assert not mesh.workers[0].received
        await mesh.idle()


@pytest.mark.parametrize("prompt", ["ab", [97, 98]])
async def test_completions_go_on_behind_text_or_tokens(
    memory_broker: MemoryBroker, model: Path, prompt: Any
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post_to("/v1/completions", model="m", prompt=prompt, max_tokens=5) as response:
            body = await response.json()
        assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "Hello")
        async with mesh.post_to(
            "/v1/completions", model="m", prompt=prompt, max_tokens=5, stream=True, echo=True
        ) as response:
            *events, _ = await events_of(response)
        assert "".join(e["choices"][0]["text"] for e in events) == "abHello"
        (work, _) = (m.work for m in mesh.workers[1].messages(Generate))
        assert (work.prompt, work.sampling.max_tokens) == ([97, 98], 5)


async def test_anthropics_messages(memory_broker: MemoryBroker, model: Path) -> None:
    tools = [{"name": "add", "input_schema": SCHEMA}]
    body = {"model": "m", "max_tokens": 500, "messages": HI, "tools": tools}
    answer = script(CALLS, cached=CachedTokens(device=64))
    async with scripted_mesh(memory_broker, model, answer) as mesh:
        async with mesh.post_to("/v1/messages?beta=true", **body) as response:
            whole = await response.json()
        assert (whole["type"], whole["stop_reason"]) == ("message", "tool_use")
        assert [b["input"] for b in whole["content"]] == [{"a": 1}, {"b": [2, {}]}]
        prompt = len(mesh.workers[1].messages(Generate)[0].work.prompt)
        assert whole["usage"]["input_tokens"] == prompt - 64
        assert whole["usage"]["cache_read_input_tokens"] == 64
        async with mesh.post_to("/v1/messages", **body, stream=True) as response:
            events = await events_of(response)
        assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 64
        pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
        assert json.loads("[" + "".join(pieces).replace("}{", "},{") + "]") == [{"a": 1}, {"b": [2, {}]}]
        assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
        async with mesh.post_to("/v1/messages/count_tokens", **body) as response:
            assert await response.json() == {"input_tokens": prompt}
        async with mesh.post_to("/v1/messages", **{**body, "messages": []}) as response:
            assert (response.status, (await response.json())["type"]) == (400, "error")
        await mesh.idle()


async def test_responses_are_stored_and_continued(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post_to("/v1/responses", model="m", input="one") as response:
            first = await response.json()
        assert first["output"][0]["content"][0]["text"] == TEXT
        body = {"model": "m", "input": "two", "previous_response_id": first["id"], "stream": True}
        async with mesh.post_to("/v1/responses", **body) as response:
            events = await events_of(response)
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
        prompt = bytes(t for t in mesh.workers[1].messages(Generate)[-1].work.prompt if t < 256).decode()
        assert prompt == f"user\noneassistant\n{TEXT}user\ntwoassistant\n"
        async with mesh.http.get(f"{mesh.url}/v1/responses/{first['id']}") as response:
            assert await response.json() == first
        async with mesh.http.delete(f"{mesh.url}/v1/responses/{first['id']}") as response:
            assert (await response.json())["deleted"] is True
        async with mesh.post_to("/v1/responses", **body) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (
                400,
                "previous_response_id",
            )


async def test_workers_ai_in_its_envelope(memory_broker: MemoryBroker, model: Path) -> None:
    run = "/client/v4/accounts/a/ai/run/m"
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post_to(run, prompt="hi") as response:
            body = await response.json()
        assert (body["success"], body["result"]["response"]) == (True, TEXT)
        async with mesh.post_to(run, messages=HI, stream=True) as response:
            *events, done = await events_of(response)
        assert ("".join(e["response"] for e in events), done) == (TEXT, "[DONE]")
        async with mesh.post_to("/client/v4/accounts/a/ai/run/@cf/x/y", prompt="hi") as response:
            body = await response.json()
        assert (body["success"], body["errors"][0]["code"]) == (False, 5007)
        async with mesh.post_to("/client/v4/accounts/a/ai/v1/chat/completions", **mesh.body()) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == TEXT


async def test_who_will_not_wait_is_refused_when_all_places_are_taken(
    memory_broker: MemoryBroker, model: Path
) -> None:
    held = Script(hold_at=1)
    async with scripted_mesh(memory_broker, model, held, max_running=1) as mesh:
        async with mesh.post(stream=True) as response:
            await response.content.readline()
            body = {"prompt": "hi", "options": {"rejectIfBusy": True}}
            async with mesh.post_to("/client/v4/accounts/a/ai/run/m", **body) as refused:
                assert (refused.status, (await refused.json())["errors"][0]["code"]) == (429, 3040)
            held.decode.set()
            await response.text()
        await mesh.idle()


async def test_tokens_and_back(memory_broker: MemoryBroker, model: Path) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        async with mesh.post_to("/tokenize", prompt="aé") as response:
            body = await response.json()
        assert body == {
            "count": 3,
            "max_model_len": 4096,
            "tokens": [97, 195, 169],
            "token_strs": ["a", "\ufffd", "\ufffd"],
        }
        async with mesh.post_to("/detokenize", tokens=body["tokens"]) as response:
            assert await response.json() == {"prompt": "aé", "content": "aé"}
        async with mesh.post_to("/tokenize", messages=HI) as response:
            assert (await response.json())["tokens"][0] == 256
        async with mesh.post_to("/detokenize", tokens=[258]) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, "tokens[0]")


async def test_a_tenant_is_told_its_limits_and_held_to_them(
    memory_broker: MemoryBroker, model: Path, tmp_path: Path
) -> None:
    key, hashed = new_key()
    tenant = {"name": "acme", "keys": [hashed], "requests_per_minute": 1}
    (file := tmp_path / "keys.json").write_text(json.dumps({"tenants": [tenant]}))
    headers = {"Authorization": f"Bearer {key}"}
    async with scripted_mesh(memory_broker, model, Script(), keys_file=str(file)) as mesh:
        url = f"{mesh.url}/v1/chat/completions"
        async with mesh.http.post(url, json=mesh.body(), headers=headers) as response:
            assert response.status == 200
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
        async with mesh.http.post(url, json=mesh.body(), headers=headers) as response:
            assert response.status == 429
            assert 1 <= int(response.headers["Retry-After"]) <= 60
        assert mesh.workers[1].messages(Generate)[0].work.tenant == "acme"

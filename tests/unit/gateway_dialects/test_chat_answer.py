"""Chat completions, whole and streamed, to the byte."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import (
    Answer,
    CallArguments,
    CallBegun,
    Delta,
    End,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCall,
)
from paceline.gateway.dialects.chat_answer import completion
from paceline.gateway.dialects.chat_stream import Chunks
from paceline.gateway.errors import too_large

HEAD = Head("ab", "m", 12)
USAGE = Usage(1, 4, 0.0, None, None)
START = b'data: {"id":"chatcmpl-ab","object":"chat.completion.chunk","created":12,"model":"m","choices":['
LOGPROB = TokenLogprob(b"h\xc3", -0.5, ((b"h\xc3", -0.5), (b"x", -math.inf)))


def chunks(*, choices: int = 1, include_usage: bool = False, logprobs: bool = False) -> Chunks:
    return Chunks(HEAD, choices=choices, include_usage=include_usage, logprobs=logprobs)


def test_a_whole_completion() -> None:
    assert completion(HEAD, [Answer("hey", end=End("length"))], USAGE, logprobs=False) == {
        "id": "chatcmpl-ab",
        "object": "chat.completion",
        "created": 12,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hey", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": USAGE.body(),
    }


def test_calls_and_reasoning_of_a_whole_completion() -> None:
    answer = Answer(
        "", "hm", [ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "g", "{")], end=End("tool_calls")
    )
    (choice,) = completion(HEAD, [answer], USAGE, logprobs=False)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{"}},
        ],
    }


def test_log_probabilities_have_bytes_and_no_infinity() -> None:
    answers = [Answer("h", logprobs=[LOGPROB]), Answer("i")]
    first, second = completion(HEAD, answers, USAGE, logprobs=True)["choices"]
    assert first["logprobs"] == {
        "content": [
            {
                "token": "h\ufffd",
                "logprob": -0.5,
                "bytes": [104, 195],
                "top_logprobs": [
                    {"token": "h\ufffd", "logprob": -0.5, "bytes": [104, 195]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            }
        ],
        "refusal": None,
    }
    assert (second["index"], second["logprobs"]) == (1, {"content": [], "refusal": None})


def test_the_events_of_a_stream() -> None:
    role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    content = b'{"index":0,"delta":{"content":"a\\n\\"\xc3\xa9"},"logprobs":null,"finish_reason":null}]}\n\n'
    finish = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
    renderer = chunks()
    assert renderer.begin(USAGE) == START + role
    assert renderer.deltas(0, [Text('a\n"é')], []) == START + content
    assert renderer.finish(0, End("stop")) == START + finish
    assert renderer.end(USAGE) == b"data: [DONE]\n\n"


def test_a_call_has_its_id_and_name_in_the_first_delta_alone() -> None:
    deltas: list[Delta] = [CallBegun(1, "c2", "f"), CallArguments(1, '{"a"')]
    events = chunks().deltas(0, deltas, [])
    close = b',"logprobs":null,"finish_reason":null}]}\n\n'
    first = b'{"index":1,"id":"c2","type":"function","function":{"name":"f","arguments":""}}]}'
    second = b'{"index":1,"function":{"arguments":"{\\"a\\""}}]}'
    delta = START + b'{"index":0,"delta":{"tool_calls":['
    assert events == delta + first + close + delta + second + close


def test_with_usage_all_chunks_but_the_last_have_a_null_usage() -> None:
    renderer = chunks(choices=2, include_usage=True)
    said = [renderer.begin(USAGE), renderer.deltas(1, [Text("x"), Reasoning("y")], [])]
    said += [renderer.finish(0, End("length")), renderer.finish(1, End("stop")), renderer.end(USAGE)]
    *bodies, done = events_of(b"".join(said))
    assert done == "[DONE]"
    assert [b["usage"] for b in bodies] == [None] * 6 + [USAGE.body()]
    assert [c["index"] for b in bodies for c in b["choices"]] == [0, 1, 1, 1, 0, 1]
    assert bodies[-1]["choices"] == []
    assert len({(b["id"], b["created"], b["model"], b["object"]) for b in bodies}) == 1


def test_log_probabilities_go_with_the_first_chunk_and_are_not_lost_without_text() -> None:
    renderer = chunks(logprobs=True)
    events = events_of(
        renderer.deltas(0, [Text("x"), Text("y")], [LOGPROB]) + renderer.deltas(0, [], [LOGPROB])
    )
    logged = [len((e["choices"][0]["logprobs"] or {"content": ()})["content"]) for e in events]
    assert logged == [1, 0, 1]
    assert [e["choices"][0]["delta"] for e in events] == [{"content": "x"}, {"content": "y"}, {"content": ""}]


def test_an_error_in_mid_stream_has_openais_shape_and_ends_it() -> None:
    error, done = events_of(chunks().error(too_large(8)))
    assert (error, done) == (too_large(8).body(), "[DONE]")


_words = st.text(max_size=5)


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trca"), max_size=12)):
        match kind:
            case "t":
                deltas.append(Text(draw(_words)))
            case "r":
                deltas.append(Reasoning(draw(_words)))
            case "c":
                deltas.append(CallBegun(calls, f"id{calls}", draw(_words)))
                calls += 1
            case _ if calls:
                deltas.append(CallArguments(draw(st.integers(0, calls - 1)), draw(_words)))
    return deltas


@given(answers())
def test_the_deltas_of_a_stream_add_up_to_the_whole(deltas: list[Delta]) -> None:
    whole = Answer()
    whole.add(deltas)
    (choice,) = completion(HEAD, [whole], USAGE, logprobs=False)["choices"]
    message = choice["message"]
    said: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events_of(chunks().deltas(0, deltas, [])):
        delta = event["choices"][0]["delta"]
        said["content"] += delta.get("content", "")
        said["reasoning_content"] += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                said["tool_calls"].append({k: v for k, v in call.items() if k != "index"})
            else:
                said["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    assert said["content"] == (message["content"] or "")
    assert said["reasoning_content"] == message.get("reasoning_content", "")
    assert said["tool_calls"] == message.get("tool_calls", [])


def events_of(stream: bytes) -> list[Any]:
    events = stream.decode().split("\n\n")
    assert events.pop() == ""
    data = [e.removeprefix("data: ") for e in events]
    return [d if d == "[DONE]" else json.loads(d) for d in data]

"""The events of a streamed response, to the byte, and what they add up to."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InternalError
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import (
    Answer,
    CallArguments,
    CallBegun,
    Delta,
    End,
    EndReason,
    Reasoning,
    Text,
    TokenLogprob,
)
from paceline.gateway.dialects.responses import RESPONSES, SpokenResponses
from paceline.gateway.dialects.responses_events import ResponseEvents
from paceline.gateway.errors import Problem

HEAD = Head("ab", "m", 12)
USAGE = Usage(5, 3, 0.0, None, None)
BUSY = Problem(429, "Full", "rate_limit_error", "rate_limit_exceeded", retry_after_s=2)


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 15.9)


def spoken(**fields: Any) -> SpokenResponses:
    return RESPONSES.parse(json.dumps({"input": "hi", **fields}).encode(), vocab=1)


def events(data: bytes) -> list[dict[str, Any]]:
    """The events' data, whose names are their types."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, body = block.split("\n")
        event = json.loads(body.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def answered(
    renderer: ResponseEvents,
    deltas: Sequence[Delta],
    end: End,
    logprobs: Sequence[Sequence[TokenLogprob]] = (),
) -> list[dict[str, Any]]:
    parts = [renderer.begin(USAGE)]
    for i, delta in enumerate(deltas):
        parts.append(renderer.deltas(0, [delta], logprobs[i] if logprobs else ()))
    parts += [renderer.finish(0, end), renderer.end(USAGE)]
    return events(b"".join(parts))


def stream(*deltas: Delta, end: EndReason = "stop", **fields: Any) -> list[dict[str, Any]]:
    return answered(spoken(**fields).renderer(HEAD), deltas, End(end))


def shapes(found: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """Types without what they have in common, and the item that they are about."""
    return [(e["type"].removeprefix("response."), e.get("output_index")) for e in found]


def test_the_bytes_of_text() -> None:
    renderer = spoken().renderer(HEAD)
    begin = events(renderer.begin(USAGE))
    assert [e["type"] for e in begin] == ["response.created", "response.in_progress"]
    assert begin[0]["response"] == begin[1]["response"]
    assert (begin[0]["response"]["status"], begin[0]["response"]["output"]) == ("in_progress", [])
    at = b'"item_id":"msg_ab00","output_index":0,"content_index":0'
    assert renderer.deltas(0, [Text('a"\n'), Text("\u00e9")], ()) == (
        b"event: response.output_item.added\n"
        b'data: {"type":"response.output_item.added","sequence_number":2,"output_index":0,"item":'
        b'{"id":"msg_ab00","type":"message","status":"in_progress","role":"assistant","content":[]}}\n\n'
        b"event: response.content_part.added\n"
        b'data: {"type":"response.content_part.added","sequence_number":3,' + at + b',"part":'
        b'{"type":"output_text","annotations":[],"logprobs":[],"text":""}}\n\n'
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","sequence_number":4,'
        + at
        + b',"delta":"a\\"\\n","logprobs":[]}\n\n'
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","sequence_number":5,'
        + at
        + b',"delta":"\xc3\xa9","logprobs":[]}\n\n'
    )
    part = b'{"type":"output_text","annotations":[],"logprobs":[],"text":"a\\"\\n\xc3\xa9"}'
    assert renderer.finish(0, End("stop")) == (
        b"event: response.output_text.done\n"
        b'data: {"type":"response.output_text.done","sequence_number":6,'
        + at
        + b',"text":"a\\"\\n\xc3\xa9","logprobs":[]}\n\n'
        b"event: response.content_part.done\n"
        b'data: {"type":"response.content_part.done","sequence_number":7,'
        + at
        + b',"part":'
        + part
        + b"}\n\n"
        b"event: response.output_item.done\n"
        b'data: {"type":"response.output_item.done","sequence_number":8,"output_index":0,"item":'
        b'{"id":"msg_ab00","type":"message","status":"completed","role":"assistant","content":['
        + part
        + b"]}}\n\n"
    )
    (last,) = events(renderer.end(USAGE))
    assert (last["type"], last["sequence_number"]) == ("response.completed", 9)
    response = last["response"]
    assert (response["status"], response["created_at"], response["completed_at"]) == ("completed", 12, 15)
    assert (response["id"], response["model"], response["error"]) == ("resp_ab", "m", None)
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (5, 3)
    assert renderer.keep_alive == b": keep-alive\n\n"


def test_reasoning_text_and_two_calls_are_items_one_after_the_other() -> None:
    found = stream(
        Reasoning("hm"),
        Reasoning("m"),
        Text("Two."),
        CallBegun(0, "call_x", "f"),
        CallArguments(0, '{"a"'),
        CallArguments(0, ":1}"),
        CallBegun(1, "call_y", "g"),
        end="tool_calls",
    )
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert shapes(found) == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
        ("completed", None),
    ]
    reasoning = {
        "id": "rs_ab00",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hmm"}],
    }
    first = {
        "id": "fc_ab02",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_x",
        "name": "f",
        "arguments": '{"a":1}',
    }
    second = {**first, "id": "fc_ab03", "call_id": "call_y", "name": "g", "arguments": ""}
    assert found[2]["item"] == {**reasoning, "status": "in_progress", "content": []}
    assert found[3]["part"] == {"type": "reasoning_text", "text": ""}
    assert found[15]["item"] == {**first, "status": "in_progress", "arguments": ""}
    at = {"item_id": "fc_ab02", "output_index": 2}
    assert found[16] == {
        "type": "response.function_call_arguments.delta",
        "sequence_number": 16,
        **at,
        "delta": '{"a"',
    }
    assert found[18] == {
        "type": "response.function_call_arguments.done",
        "sequence_number": 18,
        **at,
        "arguments": '{"a":1}',
    }
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert (done[0], done[2], done[3]) == (reasoning, first, second)
    assert found[-1]["response"]["output"] == done


def test_a_function_in_a_namespace_comes_back_in_its_two_parts() -> None:
    tools = [{"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}]
    found = stream(CallBegun(0, "c", "agents__spawn"), CallBegun(1, "d", "agents__other"), tools=tools)
    items = found[-1]["response"]["output"]
    assert [(i.get("namespace"), i["name"]) for i in items] == [("agents", "spawn"), (None, "agents__other")]


def test_a_length_cut_inside_a_call_is_incomplete() -> None:
    found = stream(Text("a"), CallBegun(0, "c", "f"), CallArguments(0, '{"a'), end="length")
    last = found[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (last["response"]["completed_at"], last["response"]["usage"]["total_tokens"]) == (None, 8)
    message, call = last["response"]["output"]
    assert (message["status"], call["status"], call["arguments"]) == ("completed", "incomplete", '{"a')
    assert found[-2]["item"] == call


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    found = stream(Text(""), Reasoning(""))
    assert shapes(found)[2:] == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("completed", None),
    ]
    assert found[-1]["response"]["output"] == spoken().whole(HEAD, [Answer()], USAGE)["output"]


def test_an_error_in_mid_stream_ends_it_with_what_there_is() -> None:
    renderer = spoken().renderer(HEAD)
    found = events(
        renderer.begin(USAGE) + renderer.deltas(0, [Reasoning("a"), Text("b")], ()) + renderer.error(BUSY)
    )
    last = found[-1]
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(found) - 1)
    response = last["response"]
    assert (response["status"], response["usage"], response["completed_at"]) == ("failed", None, None)
    assert response["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Full. Please try again in 2s",
    }
    assert [(i["type"], i["status"]) for i in response["output"]] == [
        ("reasoning", "completed"),
        ("message", "incomplete"),
    ]


def test_an_error_before_all_else_begins_the_response_first() -> None:
    found = events(spoken().renderer(HEAD).error(BUSY))
    assert [(e["type"], e["sequence_number"]) for e in found] == [
        ("response.created", 0),
        ("response.in_progress", 1),
        ("response.failed", 2),
    ]


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Problem(502, "m", "server_error", "worker_lost"), "server_error"),
        (Problem(500, "m", "server_error", "internal"), "server_error"),
        (Problem(400, "m", "invalid_request_error", "context_length_exceeded"), "context_length_exceeded"),
        (Problem(400, "m", "invalid_request_error", "invalid_value"), "invalid_prompt"),
        (Problem(429, "m", "insufficient_quota", "insufficient_quota"), "insufficient_quota"),
    ],
)
def test_codes_of_errors_are_those_that_clients_know(problem: Problem, code: str) -> None:
    last = events(spoken().renderer(HEAD).error(problem))[-1]
    assert last["response"]["error"] == {"code": code, "message": "m"}


def test_log_probabilities_go_with_the_text_that_their_tokens_made() -> None:
    a = TokenLogprob(b"\xc3", -0.5, ((b"\xc3", -0.5), (b"x", float("-inf"))))
    b = TokenLogprob(b"\xa9", -1.0, ())
    c = TokenLogprob(b"", -2.0, ())
    renderer = spoken(top_logprobs=2).renderer(HEAD)
    data = renderer.begin(USAGE) + renderer.deltas(0, [], [a]) + renderer.deltas(0, [Text("\u00e9")], [b])
    data += renderer.deltas(0, [], [c]) + renderer.finish(0, End("stop")) + renderer.end(USAGE)
    found = {e["type"]: e for e in events(data)}
    first = {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xC3]},
            {"token": "x", "logprob": -9999.0, "bytes": [120]},
        ],
    }
    second = {"token": "\ufffd", "logprob": -1.0, "bytes": [0xA9], "top_logprobs": []}
    third = {"token": "", "logprob": -2.0, "bytes": [], "top_logprobs": []}
    assert found["response.output_text.delta"]["logprobs"] == [first, second]
    assert found["response.output_text.done"]["logprobs"] == [first, second, third]
    (item,) = found["response.completed"]["response"]["output"]
    assert item["content"][0]["logprobs"] == [first, second, third]


def test_arguments_of_a_call_that_is_over_are_our_fault() -> None:
    renderer = spoken().renderer(HEAD)
    renderer.deltas(0, [CallBegun(0, "c", "f"), CallBegun(1, "d", "f")], ())
    with pytest.raises(InternalError):
        renderer.deltas(0, [CallArguments(0, "{}")], ())


def _deltas(pieces: list[tuple[str, list[str]]]) -> list[Delta]:
    """Calls as parsers give them: their pieces follow their beginning."""
    deltas: list[Delta] = []
    calls = 0
    for kind, texts in pieces:
        if kind == "call":
            deltas.append(CallBegun(calls, f"call_{calls}", f"f{calls}"))
            deltas += [CallArguments(calls, text) for text in texts]
            calls += 1
        else:
            deltas += [Text(text) if kind == "text" else Reasoning(text) for text in texts]
    return deltas


@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "reasoning", "call"]), st.lists(st.text(max_size=5), max_size=3))
    ),
    st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_the_sum_of_the_events_is_the_whole_answer(pieces: list[tuple[str, list[str]]], end: Any) -> None:
    deltas = _deltas(pieces)
    found = stream(*deltas, end=end)
    answer = Answer(end=End(end))
    answer.add(deltas)
    whole = spoken().whole(HEAD, [answer], USAGE)
    last = found[-1]["response"]

    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert {k: v for k, v in last.items() if k != "output"} == {
        k: v for k, v in whole.items() if k != "output"
    }
    ids = [item["id"] for item in last["output"]]
    assert len(set(ids)) == len(ids)
    for kind, delta in (
        ("message", "output_text"),
        ("reasoning", "reasoning_text"),
        ("function_call", "function_call_arguments"),
    ):
        streamed = [e["delta"] for e in found if e["type"] == f"response.{delta}.delta"]
        done = [e for e in found if e["type"] == f"response.{delta}.done"]
        assert "".join(streamed) == _said(whole["output"], kind) == _said(last["output"], kind)
        assert len(done) == len([item for item in last["output"] if item["type"] == kind])
    assert _calls(last["output"]) == _calls(whole["output"])
    assert [item["status"] for item in last["output"]].count("incomplete") == (end == "length")


def _said(output: list[dict[str, Any]], kind: str) -> str:
    items = [item for item in output if item["type"] == kind]
    if kind == "function_call":
        return "".join(item["arguments"] for item in items)
    return "".join(part["text"] for item in items for part in item["content"])


def _calls(output: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(i["call_id"], i["name"], i["arguments"]) for i in output if i["type"] == "function_call"]

"""Answers, streams and errors in Workers AI's envelope."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts import errors as e
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import Answer, CallArguments, CallBegun, Delta, End, Reasoning, Text
from paceline.gateway.dialects.workers_ai import Run, SpokenRun
from paceline.gateway.errors import Problem, internal, problem_of, timed_out, too_large, unauthorized
from paceline.gateway.router import context_too_long

HEAD = Head("ab", "m", 12)
RUN = Run("m")
USAGE = Usage(3, 4, 0.0, None, None)
JSON_USAGE = json.dumps(USAGE.body(), separators=(",", ":")).encode()


def spoken(**fields: Any) -> SpokenRun:
    return RUN.parse(json.dumps({"prompt": "x", **fields}).encode(), vocab=10)


def whole(deltas: list[Delta], end: End, **fields: Any) -> dict[str, Any]:
    answer = Answer(end=end)
    answer.add(deltas)
    body: dict[str, Any] = spoken(**fields).whole(HEAD, [answer], USAGE)
    return body


def streamed(deltas: list[Delta], end: End) -> bytes:
    renderer = spoken(stream=True).renderer(HEAD)
    pieces = [renderer.begin(USAGE), *(renderer.deltas(0, [d], ()) for d in deltas)]
    return b"".join([*pieces, renderer.finish(0, end), renderer.end(USAGE)])


def test_a_whole_answer() -> None:
    deltas: list[Delta] = [
        Reasoning("hm"),
        Text("Hi"),
        CallBegun(0, "c1", "read"),
        CallArguments(0, '{"a": 1}'),
        CallBegun(1, "c2", "list"),
        CallBegun(2, "c3", "read"),
        CallArguments(2, '{"a'),
    ]
    assert whole(deltas, End("length")) == {
        "result": {
            "response": "Hi",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "name": "read", "arguments": {"a": 1}},
                {"id": "c2", "name": "list", "arguments": {}},
                {"id": "c3", "name": "read", "arguments": '{"a'},
            ],
            "finish_reason": "length",
            "usage": USAGE.body(),
        },
        "success": True,
        "errors": [],
        "messages": [],
    }


@pytest.mark.parametrize(("text", "response"), [('{"a": [1]}', {"a": [1]}), ('{"a": [1', '{"a": [1')])
def test_json_is_given_as_its_value_unless_it_was_cut(text: str, response: Any) -> None:
    answer = whole([Text(text)], End("stop"), response_format={"type": "json_object"})
    assert answer["result"]["response"] == response


def test_text_that_happens_to_be_json_stays_text() -> None:
    assert whole([Text("1")], End("stop"))["result"]["response"] == "1"


def test_a_streamed_text() -> None:
    assert streamed([Reasoning("h\n"), Text('é"'), Text("x")], End("stop")) == (
        b'data: {"response":""}\n\n'
        b'data: {"response":"","reasoning_content":"h\\n"}\n\n'
        b'data: {"response":"\xc3\xa9\\""}\n\n'
        b'data: {"response":"x"}\n\n'
        b'data: {"response":"","finish_reason":"stop","usage":' + JSON_USAGE + b"}\n\n"
        b"data: [DONE]\n\n"
    )


def test_streamed_calls_come_in_full() -> None:
    deltas: list[Delta] = [
        CallBegun(0, "c1", "read"),
        CallArguments(0, '{"a":'),
        CallArguments(0, " 1}"),
        CallBegun(1, "c2", "list"),
    ]
    assert streamed(deltas, End("tool_calls")) == (
        b'data: {"response":""}\n\n'
        b'data: {"response":"","tool_calls":[{"id":"c1","name":"read","arguments":{"a":1}},'
        b'{"id":"c2","name":"list","arguments":{}}]}\n\n'
        b'data: {"response":"","finish_reason":"tool_calls","usage":' + JSON_USAGE + b"}\n\n"
        b"data: [DONE]\n\n"
    )


def test_an_error_in_mid_stream_ends_it() -> None:
    renderer = spoken(stream=True).renderer(HEAD)
    renderer.begin(USAGE)
    assert renderer.error(problem_of(e.WorkerLost("gone"))) == (
        b'data: {"result":null,"success":false,"errors":[{"code":3043,"message":"gone"}],"messages":[]}\n\n'
        b"data: [DONE]\n\n"
    )


@given(st.lists(st.builds(Text, st.text()) | st.builds(Reasoning, st.text())))
def test_a_stream_adds_up_to_the_whole(deltas: list[Delta]) -> None:
    *events, done = streamed(deltas, End("stop")).split(b"\n\n")[:-1]
    assert done == b"data: [DONE]"
    lines = [json.loads(event.removeprefix(b"data: ")) for event in events]
    result = whole(deltas, End("stop"))["result"]
    assert "".join(line["response"] for line in lines) == result["response"]
    assert "".join(line.get("reasoning_content", "") for line in lines) == result.get("reasoning_content", "")


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (problem_of(e.InvalidRequest("m", param="a.b")), 5004, "a.b: m"),
        (problem_of(context_too_long(5, 4)), 3006, f"messages: {context_too_long(5, 4).message}"),
        (unauthorized(), 10000, unauthorized().message),
        (problem_of(e.ModelNotFound("m")), 5007, "m"),
        (Problem(404, "m", "t", "not_found"), 7000, "m"),
        (timed_out(3), 3007, timed_out(3).message),
        (too_large(8), 3006, too_large(8).message),
        (problem_of(e.Busy("m")), 3040, "Capacity temporarily exceeded, please try again. m"),
        (problem_of(e.Unavailable("m")), 3040, "Capacity temporarily exceeded, please try again. m"),
        (internal(), 3043, internal().message),
    ],
)
def test_problems(problem: Problem, code: int, message: str) -> None:
    assert RUN.problem(problem, "ab") == {
        "result": None,
        "success": False,
        "errors": [{"code": code, "message": message}],
        "messages": [],
    }

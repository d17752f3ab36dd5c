"""Answers and errors in Anthropic's shape: to the byte where they are streamed, and the same where they are not."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts import errors as e
from paceline.contracts.messages import CachedTokens, Started, Timings
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import Answer, CallArguments, CallBegun, Delta, End, Reasoning, Text
from paceline.gateway.dialects.anthropic import MESSAGES
from paceline.gateway.dialects.anthropic_answer import count_body
from paceline.gateway.errors import Problem, internal, problem_of, too_large, unauthorized
from paceline.gateway.router import context_too_long

HEAD = Head("ab", "m", 12)
SPOKEN = MESSAGES.parse(b'{"model":"m","max_tokens":8,"messages":[{"role":"user","content":"x"}]}', vocab=10)
CACHED = CachedTokens(device=64, host=128)
STARTED = Started(request_id="ab", attempt=1, worker="p", cached=CACHED, timings=Timings())
BEGUN = Usage(200, 1, 0.0, STARTED, None)
ENDED = Usage(200, 9, 0.0, STARTED, None, reasoning_tokens=5)
PACELINE = json.dumps(ENDED.body()["paceline"], separators=(",", ":"))

START = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_ab","type":"message","role":"assistant","model":"m","content":[],\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":8,"cache_creation_input_tokens":0,\
"cache_read_input_tokens":192,"output_tokens":1}}}

event: ping
data: {"type":"ping"}

"""


def start(index: int, block: str) -> str:
    fields = f'{{"type":"content_block_start","index":{index},"content_block":{block}}}'
    return f"event: content_block_start\ndata: {fields}\n\n"


def delta(index: int, fields: str) -> str:
    data = f'{{"type":"content_block_delta","index":{index},"delta":{{{fields}}}}}'
    return f"event: content_block_delta\ndata: {data}\n\n"


def stop(index: int) -> str:
    return f'event: content_block_stop\ndata: {{"type":"content_block_stop","index":{index}}}\n\n'


def end(reason: str, sequence: str = "null") -> str:
    return (
        'event: message_delta\ndata: {"type":"message_delta",'
        f'"delta":{{"stop_reason":"{reason}","stop_sequence":{sequence}}},'
        '"usage":{"input_tokens":8,"cache_creation_input_tokens":0,"cache_read_input_tokens":192,'
        f'"output_tokens":9,"output_tokens_details":{{"thinking_tokens":5}},"paceline":{PACELINE}}}}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


def streamed(*batches: list[Delta], reason: End) -> str:
    renderer = SPOKEN.renderer(HEAD)
    events = [renderer.begin(BEGUN), *(renderer.deltas(0, batch, ()) for batch in batches)]
    return b"".join([*events, renderer.finish(0, reason), renderer.end(ENDED)]).decode()


def whole(deltas: list[Delta], reason: End) -> dict[str, Any]:
    answer = Answer(end=reason)
    answer.add(deltas)
    message: dict[str, Any] = SPOKEN.whole(HEAD, [answer], ENDED)
    return message


def test_a_text() -> None:
    assert streamed([Text("Hel")], [Text('l"o'), Text("é\n")], reason=End("stop")) == (
        START
        + start(0, '{"type":"text","text":""}')
        + delta(0, '"type":"text_delta","text":"Hel"')
        + delta(0, '"type":"text_delta","text":"l\\"o"')
        + delta(0, '"type":"text_delta","text":"é\\n"')
        + stop(0)
        + end("end_turn")
    )


def test_an_answer_of_nothing() -> None:
    assert streamed([], reason=End("stop")) == START + end("end_turn")


def test_thinking_is_signed_before_the_text() -> None:
    deltas: list[Delta] = [Reasoning("hm"), Reasoning("!"), Text("Hi")]
    assert streamed(deltas, reason=End("stop", "STOP")) == (
        START
        + start(0, '{"type":"thinking","thinking":"","signature":""}')
        + delta(0, '"type":"thinking_delta","thinking":"hm"')
        + delta(0, '"type":"thinking_delta","thinking":"!"')
        + delta(0, '"type":"signature_delta","signature":"paceline"')
        + stop(0)
        + start(1, '{"type":"text","text":""}')
        + delta(1, '"type":"text_delta","text":"Hi"')
        + stop(1)
        + end("stop_sequence", '"STOP"')
    )


def test_two_calls_are_two_blocks() -> None:
    deltas: list[Delta] = [
        Text("Both:"),
        CallBegun(0, "toolu_1", "read"),
        CallArguments(0, '{"path":'),
        CallArguments(0, '"a"}'),
        CallBegun(1, "toolu_2", "list"),
        CallArguments(1, "{}"),
    ]
    assert streamed(deltas, reason=End("tool_calls")) == (
        START
        + start(0, '{"type":"text","text":""}')
        + delta(0, '"type":"text_delta","text":"Both:"')
        + stop(0)
        + start(1, '{"type":"tool_use","id":"toolu_1","name":"read","input":{}}')
        + delta(1, '"type":"input_json_delta","partial_json":"{\\"path\\":"')
        + delta(1, '"type":"input_json_delta","partial_json":"\\"a\\"}"')
        + stop(1)
        + start(2, '{"type":"tool_use","id":"toolu_2","name":"list","input":{}}')
        + delta(2, '"type":"input_json_delta","partial_json":"{}"')
        + stop(2)
        + end("tool_use")
    )


def test_an_answer_cut_short_inside_a_call() -> None:
    deltas: list[Delta] = [CallBegun(0, "toolu_1", "read"), CallArguments(0, '{"path":"a')]
    assert streamed(deltas, reason=End("length")) == (
        START
        + start(0, '{"type":"tool_use","id":"toolu_1","name":"read","input":{}}')
        + delta(0, '"type":"input_json_delta","partial_json":"{\\"path\\":\\"a"')
        + stop(0)
        + end("max_tokens")
    )
    message = whole(deltas, End("length"))
    assert message["stop_reason"] == "max_tokens"
    assert message["content"] == [
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"_raw": '{"path":"a'}}
    ]


def test_an_error_in_mid_stream() -> None:
    renderer = SPOKEN.renderer(HEAD)
    renderer.begin(BEGUN)
    renderer.deltas(0, [Text("x")], ())
    assert renderer.error(problem_of(e.Unavailable("nobody is left"))) == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"nobody is left"},'
        b'"request_id":"ab"}\n\n'
    )


def test_a_whole_answer() -> None:
    deltas: list[Delta] = [
        Reasoning("hm"),
        Text("Hi"),
        CallBegun(0, "toolu_1", "read"),
        CallArguments(0, '{"n": [1]}'),
        CallBegun(1, "toolu_2", "list"),
    ]
    assert whole(deltas, End("tool_calls")) == {
        "id": "msg_ab",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "paceline"},
            {"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"n": [1]}},
            {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 8,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 192,
            "output_tokens": 9,
            "output_tokens_details": {"thinking_tokens": 5},
            "paceline": ENDED.body()["paceline"],
        },
    }


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "null", "rm -rf", '{"a":1} x', "[" * 5000])
def test_arguments_that_are_no_object_are_not_made_one(arguments: str) -> None:
    (block,) = whole([CallBegun(0, "t", "n"), CallArguments(0, arguments)], End("tool_calls"))["content"]
    assert block["input"] == {"_raw": arguments}


def test_cached_tokens_are_zero_and_present_when_nothing_is_known() -> None:
    nothing = Usage(5, 0, 0.0, None, None)
    (data,) = (
        line.removeprefix("data: ")
        for line in SPOKEN.renderer(HEAD).begin(nothing).decode().splitlines()
        if line.startswith("data: ") and "message_start" in line
    )
    assert json.loads(data)["message"]["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }


def test_what_counting_answers() -> None:
    assert count_body(17) == {"input_tokens": 17}


_TEXT = st.text(min_size=1, max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> list[Delta]:
    """Deltas as parsers make them, in any order that they may have."""
    deltas: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trca"), max_size=30)):
        match kind:
            case "t":
                deltas.append(Text(draw(_TEXT)))
            case "r":
                deltas.append(Reasoning(draw(_TEXT)))
            case "c":
                deltas.append(CallBegun(calls, f"toolu_{calls}", draw(_TEXT)))
                calls += 1
            case _ if calls:
                deltas.append(CallArguments(draw(st.integers(0, calls - 1)), draw(_TEXT)))
    return deltas


def blocks(stream: str) -> list[dict[str, Any]]:
    """The content that a client of the stream ends up with."""
    content: list[dict[str, Any]] = []
    opened: set[int] = set()
    for event in stream.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        match fields["type"]:
            case "content_block_start":
                assert not opened
                assert fields["index"] == len(content)
                opened.add(fields["index"])
                content.append({**fields["content_block"], "input": ""})
            case "content_block_delta":
                piece = fields["delta"]
                kind = piece.pop("type")
                into = "input" if kind == "input_json_delta" else next(iter(piece))
                assert kind != "input_json_delta" or content[fields["index"]]["type"] == "tool_use"
                content[fields["index"]][into] += next(iter(piece.values()))
            case "content_block_stop":
                opened.remove(fields["index"])
    assert not opened
    return content


def of_kind(content: list[dict[str, Any]], kind: str, field: str) -> list[Any]:
    return [block[field] for block in content if block["type"] == kind]


@given(answers(), st.data())
def test_a_stream_adds_up_to_the_whole(deltas: list[Delta], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(deltas)))
    content = blocks(streamed(deltas[:cut], deltas[cut:], reason=End("stop")))
    answer = Answer()
    answer.add(deltas)
    assert "".join(of_kind(content, "text", "text")) == answer.text
    assert "".join(of_kind(content, "thinking", "thinking")) == answer.reasoning
    assert all(of_kind(content, "thinking", "signature"))
    assert list(
        zip(
            of_kind(content, "tool_use", "id"),
            of_kind(content, "tool_use", "name"),
            of_kind(content, "tool_use", "input"),
            strict=True,
        )
    ) == [(call.id, call.name, call.arguments) for call in answer.calls]


def of_status(status: int) -> Problem:
    return Problem(status, "m", "t", "c")


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        (problem_of(e.InvalidRequest("m", param="a.b")), "invalid_request_error", "a.b: m"),
        (unauthorized(), "authentication_error", unauthorized().message),
        (of_status(403), "permission_error", "m"),
        (problem_of(e.ModelNotFound("m")), "not_found_error", "m"),
        (of_status(405), "invalid_request_error", "m"),
        (too_large(8), "request_too_large", too_large(8).message),
        (problem_of(e.Busy("m")), "rate_limit_error", "m"),
        (internal(), "api_error", internal().message),
        (problem_of(e.WorkerLost("m")), "api_error", "m"),
        (problem_of(e.Unavailable("m")), "overloaded_error", "m"),
        (of_status(529), "overloaded_error", "m"),
        (of_status(504), "timeout_error", "m"),
    ],
)
def test_problems(problem: Problem, kind: str, message: str) -> None:
    assert MESSAGES.problem(problem, "ab") == {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": "ab",
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (context_too_long(5000, 4096), "prompt is too long: 5000 tokens > 4096 maximum"),
        (
            e.ContextTooLong("this worker's maximum context length is 64 tokens, and 65 are to be continued"),
            "prompt is too long: 65 tokens > 64 maximum",
        ),
        (e.ContextTooLong("no room"), "prompt is too long: no room"),
    ],
)
def test_a_context_that_is_too_long_is_said_as_claude_code_reads_it(
    error: e.ContextTooLong, message: str
) -> None:
    assert MESSAGES.problem(problem_of(error), "ab")["error"] == {
        "type": "invalid_request_error",
        "message": message,
    }

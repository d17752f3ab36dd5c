"""The response object: every key that clients look for, with what the request said and what became of it."""

import json
from typing import Any

import pytest

from paceline.contracts.messages import CachedTokens, Started, Timings
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import Answer, End, TokenLogprob, ToolCall
from paceline.gateway.dialects.responses import RESPONSES
from paceline.gateway.errors import Problem

HEAD = Head("ab", "served", 12)
STARTED = Started(
    request_id="ab", attempt=1, worker="p", cached=CachedTokens(device=64, host=32), timings=Timings()
)
USAGE = Usage(100, 7, 0.0, STARTED, None, reasoning_tokens=2)


@pytest.fixture(autouse=True)
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 15.9)


def whole(answer: Answer, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"input": "hi", **fields}).encode()
    response: dict[str, Any] = RESPONSES.parse(body, vocab=1).whole(HEAD, [answer], USAGE)
    return response


def test_a_response_with_nothing_asked_for() -> None:
    assert whole(Answer("Hello.")) == {
        "id": "resp_ab",
        "object": "response",
        "created_at": 12,
        "completed_at": 15,
        "status": "completed",
        "model": "served",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "output": [
            {
                "id": "msg_ab00",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Hello."}],
            }
        ],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 100,
            "input_tokens_details": {"cached_tokens": 96, "cache_write_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 107,
            "paceline": USAGE.body()["paceline"],
        },
        "user": None,
    }


def test_cached_tokens_are_zero_and_present_when_nothing_is_known() -> None:
    spoken = RESPONSES.parse(b'{"input":"hi"}', vocab=1)
    usage = spoken.whole(HEAD, [Answer("x")], Usage(1, 1, 0.0, None, None))["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("field", "said", "shown"),
    [
        ("frequency_penalty", 0.5, 0.5),
        ("instructions", "Be brief.", "Be brief."),
        ("max_output_tokens", 16, 16),
        ("max_tool_calls", 2, 2),
        ("metadata", {"k": "v"}, {"k": "v"}),
        ("parallel_tool_calls", False, False),
        ("presence_penalty", -0.5, -0.5),
        ("previous_response_id", "resp_x", "resp_x"),
        ("prompt_cache_key", "k", "k"),
        ("reasoning", {"effort": "low", "summary": "auto"}, {"effort": "low", "summary": "auto"}),
        ("safety_identifier", "s", "s"),
        ("service_tier", "flex", "flex"),
        ("service_tier", "priority", "default"),
        ("store", True, False),
        ("temperature", 0, 0.0),
        (
            "text",
            {"format": {"type": "json_object"}, "verbosity": "low"},
            {"format": {"type": "json_object"}, "verbosity": "low"},
        ),
        (
            "text",
            {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [1]}}},
            {
                "format": {
                    "type": "json_schema",
                    "name": "n",
                    "description": None,
                    "schema": {"enum": [1]},
                    "strict": False,
                }
            },
        ),
        ("tool_choice", "none", "none"),
        ("top_logprobs", 3, 3),
        ("top_p", 0.5, 0.5),
        ("truncation", "auto", "auto"),
        ("user", "u", "u"),
    ],
)
def test_a_response_says_what_was_asked_for(field: str, said: Any, shown: Any) -> None:
    assert whole(Answer(), **{field: said})[field] == shown


def test_a_response_shows_the_tools_that_the_model_was_offered() -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
    inner = {"type": "function", "name": "g"}
    nothing = {"type": "object", "properties": {}}
    namespace = {"type": "namespace", "name": "n", "description": "d", "tools": [inner, {"type": "custom"}]}
    choice = {"type": "function", "name": "g", "namespace": "n"}
    response = whole(Answer(), tools=[function, {"type": "web_search"}, namespace], tool_choice=choice)
    assert response["tools"] == [
        {**function, "description": None},
        {
            "type": "namespace",
            "name": "n",
            "description": "d",
            "tools": [{**inner, "description": None, "parameters": nothing, "strict": False}],
        },
    ]
    assert response["tool_choice"] == choice


def test_the_items_of_an_answer_that_is_not_streamed() -> None:
    calls = [ToolCall("call_x", "f", '{"a":1}'), ToolCall("call_y", "n__g", "{")]
    namespace = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}
    answer = Answer("Two.", "Hm.", calls, [TokenLogprob(b"T", -1.0, ())], End("length"))
    response = whole(answer, tools=[namespace])
    call = {
        "id": "fc_ab02",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_x",
        "name": "f",
        "arguments": '{"a":1}',
    }
    assert response["output"] == [
        {
            "id": "rs_ab00",
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {
            "id": "msg_ab01",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "logprobs": [], "text": "Two."}],
        },
        call,
        {
            **call,
            "id": "fc_ab03",
            "status": "incomplete",
            "call_id": "call_y",
            "namespace": "n",
            "name": "g",
            "arguments": "{",
        },
    ]
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_log_probabilities_are_there_when_asked_for() -> None:
    answer = Answer("T", logprobs=[TokenLogprob(b"T", -1.0, ((b"U", -2.0),))])
    (item,) = whole(answer, include=["message.output_text.logprobs"])["output"]
    assert item["content"][0]["logprobs"] == [
        {
            "token": "T",
            "logprob": -1.0,
            "bytes": [84],
            "top_logprobs": [{"token": "U", "logprob": -2.0, "bytes": [85]}],
        }
    ]


def test_errors_have_the_shape_of_openai() -> None:
    problem = Problem(400, "No.", "invalid_request_error", "invalid_value", "input[0].type")
    assert RESPONSES.problem(problem, "ab") == {
        "error": {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "input[0].type",
            "code": "invalid_value",
        }
    }

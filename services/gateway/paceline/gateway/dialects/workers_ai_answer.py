"""Answers, streams and errors in Workers AI's envelope."""

from collections.abc import Sequence
from typing import Any

import orjson

from paceline.gateway import sse
from paceline.gateway.answer import Usage
from paceline.gateway.deltas import Answer, Delta, End, Reasoning, Text, TokenLogprob, ToolCall
from paceline.gateway.errors import Problem

_CAPACITY = 3040
_BY_CODE = {"model_not_found": 5007, "context_length_exceeded": 3006}
_BY_STATUS = {
    400: 5004,
    401: 10000,  # of Cloudflare's API as a whole, as is 7000
    403: 5018,
    404: 7000,
    405: 7000,
    408: 3007,
    413: 3006,
    429: _CAPACITY,
    503: _CAPACITY,
    504: 3007,
}
_OTHER = 3043


def whole_body(answer: Answer, usage: Usage, *, as_json: bool) -> dict[str, Any]:
    """The body of an answer that is not streamed. `as_json` when the text is JSON: the response is then its value,
    unless it was cut short."""
    result: dict[str, Any] = {
        "response": _value(answer.text) if as_json else answer.text,
        "tool_calls": _calls(answer.calls),
        "finish_reason": answer.end.reason,
        "usage": usage.body(),
    }
    if answer.reasoning:
        result["reasoning_content"] = answer.reasoning
    return {"result": result, "success": True, "errors": [], "messages": []}


def problem_body(problem: Problem) -> dict[str, Any]:
    """The body of an error response and the last event of a stream that failed."""
    code = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, _OTHER)
    message = f"{problem.param}: {problem.message}" if problem.param else problem.message
    if code == _CAPACITY:
        # The words that clients know.
        message = f"Capacity temporarily exceeded, please try again. {message}"
    error = {"code": code, "message": message}
    return {"result": None, "success": False, "errors": [error], "messages": []}


class Lines:
    """A `Renderer`, of the only choice that there is. Calls are sent in full, once the answer has ended."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self) -> None:
        self._calls = Answer()
        self._end = End("stop")

    def begin(self, usage: Usage) -> bytes:
        return _line({"response": ""})

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes:
        return b"".join([self._one(delta) for delta in deltas])

    def finish(self, choice: int, end: End) -> bytes:
        self._end = end
        calls = self._calls.calls
        return _line({"response": "", "tool_calls": _calls(calls)}) if calls else b""

    def end(self, usage: Usage) -> bytes:
        last = {"response": "", "finish_reason": self._end.reason, "usage": usage.body()}
        return _line(last) + sse.DONE

    def error(self, problem: Problem) -> bytes:
        return _line(problem_body(problem)) + sse.DONE

    def _one(self, delta: Delta) -> bytes:
        match delta:
            case Text(text):
                return b'data: {"response":' + orjson.dumps(text) + b"}\n\n"
            case Reasoning(text):
                return b'data: {"response":"","reasoning_content":' + orjson.dumps(text) + b"}\n\n"
            case _:
                self._calls.add((delta,))
                return b""


def _line(fields: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def _calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """Arguments are an object, or the text that the model wrote where that is no JSON."""
    return [{"id": c.id, "name": c.name, "arguments": _value(c.arguments or "{}")} for c in calls]


def _value(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text

"""The bytes of a streamed answer in Anthropic's shape: named server-sent events.

An answer is a series of content blocks, each opened, filled and closed before the next. A delta is a template around
one string, because a stream writes one per step and only the text differs.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import CallArguments, CallBegun, Delta, End, Reasoning, Text, TokenLogprob
from paceline.gateway.dialects.anthropic_answer import SIGNATURE, final_usage, first_usage, message, stop
from paceline.gateway.dialects.anthropic_errors import problem_body
from paceline.gateway.errors import Problem

_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":'
_FIELDS: dict[type[Delta], bytes] = {
    Text: b'"text_delta","text":',
    Reasoning: b'"thinking_delta","thinking":',
    CallBegun: b'"input_json_delta","partial_json":',
}
_THINKING = {"type": "thinking", "thinking": "", "signature": ""}
_SIGNED = b'"signature_delta","signature":' + orjson.dumps(SIGNATURE) + b"}}\n\n"


def _event(fields: dict[str, Any]) -> bytes:
    # The Python SDK drops an event without the line that names it.
    return b"event: " + str(fields["type"]).encode() + b"\ndata: " + orjson.dumps(fields) + b"\n\n"


_PING = _event({"type": "ping"})


class Events:
    """A `Renderer`, of the only choice that there is."""

    keep_alive = _PING

    def __init__(self, head: Head) -> None:
        self._head = head
        self._block = -1
        self._kind: type[Delta] | None = None  # of the open block
        self._delta = b""  # the constant beginning of its deltas
        self._calls: list[bytes] = []  # the same of each call
        self._end = End("stop")

    def begin(self, usage: Usage) -> bytes:
        begun = message(self._head) | {"usage": first_usage(usage)}
        return _event({"type": "message_start", "message": begun}) + _PING

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes:
        return b"".join([self._one(delta) for delta in deltas])

    def finish(self, choice: int, end: End) -> bytes:
        self._end = end
        return self._close()

    def end(self, usage: Usage) -> bytes:
        ended = {"type": "message_delta", "delta": stop(self._end), "usage": final_usage(usage)}
        return _event(ended) + _event({"type": "message_stop"})

    def error(self, problem: Problem) -> bytes:
        return _event(problem_body(problem, self._head.request_id))

    def _one(self, delta: Delta) -> bytes:
        match delta:
            case Text(text):
                opened = b"" if self._kind is Text else self._open(Text, {"type": "text", "text": ""})
                return opened + self._delta + orjson.dumps(text) + b"}}\n\n"
            case Reasoning(text):
                opened = b"" if self._kind is Reasoning else self._open(Reasoning, _THINKING)
                return opened + self._delta + orjson.dumps(text) + b"}}\n\n"
            case CallArguments(index, text):
                return self._calls[index] + orjson.dumps(text) + b"}}\n\n"
            case CallBegun(_, call_id, name):
                opened = self._open(CallBegun, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
                self._calls.append(self._delta)
                return opened

    def _open(self, kind: type[Delta], block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._block += 1
        self._kind = kind
        self._delta = _DELTA % self._block + _FIELDS[kind]
        return closed + _event({"type": "content_block_start", "index": self._block, "content_block": block})

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signed = _DELTA % self._block + _SIGNED if self._kind is Reasoning else b""
        self._kind = None
        return signed + _event({"type": "content_block_stop", "index": self._block})

"""The bytes of a streamed chat completion: server-sent events of chat.completion.chunk objects.

A chunk is a template around one string, because a stream writes one per step and only the text differs.
"""

from collections.abc import Sequence
from functools import cached_property

import orjson

from paceline.gateway import sse
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import CallArguments, CallBegun, Delta, End, Reasoning, Text, TokenLogprob
from paceline.gateway.dialects.chat_answer import completion_id, token_logprobs
from paceline.gateway.errors import Problem


class Chunks:
    """A `Renderer`. With `include_usage` every chunk but the last has `usage: null`, as OpenAI's do."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self, head: Head, *, choices: int, include_usage: bool, logprobs: bool) -> None:
        fields = {
            "id": completion_id(head),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._open = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['
        self._null_usage = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._close = b',"logprobs":null,"finish_reason":null}]' + self._null_usage
        self._choices = [_Choice(self._open + b'{"index":%d,"delta":' % i) for i in range(choices)]

    def begin(self, usage: Usage) -> bytes:
        role = b'{"role":"assistant","content":""}'
        return b"".join(c.delta + role + self._close for c in self._choices)

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes:
        parts = self._choices[choice]
        if not self._logprobs:
            return b"".join([self._delta(parts, d) + self._close for d in deltas])
        # All of them go with the first chunk; tokens that only held text back make one without text.
        logged = b',"logprobs":' + orjson.dumps(token_logprobs(logprobs))
        closes = [logged + b',"finish_reason":null}]' + self._null_usage] + [self._close] * len(deltas)
        return b"".join(
            self._delta(parts, d) + close for d, close in zip(deltas or (Text(""),), closes, strict=False)
        )

    def finish(self, choice: int, end: End) -> bytes:
        quoted = b'"' + end.reason.encode() + b'"'
        delta = self._choices[choice].delta
        return delta + b'{},"logprobs":null,"finish_reason":' + quoted + b"}]" + self._null_usage

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return sse.DONE
        return self._open + b'],"usage":' + orjson.dumps(usage.body()) + b"}\n\n" + sse.DONE

    def error(self, problem: Problem) -> bytes:
        """After the stream began: clients raise it or retry, and never wait for more."""
        return b"data: " + problem.encode() + b"\n\n" + sse.DONE

    def _delta(self, parts: "_Choice", delta: Delta) -> bytes:
        match delta:
            case Text(text):
                return parts.content + orjson.dumps(text) + b"}"
            case Reasoning(text):
                return parts.reasoning + orjson.dumps(text) + b"}"
            case CallArguments(index, text):
                return parts.arguments(index) + orjson.dumps(text) + b"}}]}"
            case CallBegun(index, call_id, name):
                call = {
                    "index": index,
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                return parts.delta + b'{"tool_calls":[' + orjson.dumps(call) + b"]}"


class _Choice:
    """The constant beginnings of one choice's chunks."""

    def __init__(self, delta: bytes) -> None:
        self.delta = delta
        self.content = delta + b'{"content":'

    @cached_property
    def reasoning(self) -> bytes:
        return self.delta + b'{"reasoning_content":'

    def arguments(self, index: int) -> bytes:
        return self.delta + b'{"tool_calls":[{"index":%d,"function":{"arguments":' % index

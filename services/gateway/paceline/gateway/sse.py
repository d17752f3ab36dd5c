"""The bytes of a streamed answer: server-sent events of chat.completion.chunk objects.

A chunk is a template around one string, because a stream writes one per step and only the text differs.
"""

import orjson

from paceline.contracts.messages import FinishReason
from paceline.gateway.answer import Head, Usage
from paceline.gateway.errors import Problem

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class Chunks:
    """The events of one answer, in the order of the methods. With `include_usage` every chunk but the last has
    `usage: null`, as OpenAI's do."""

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        fields = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._open = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['
        self._delta = self._open + b'{"index":0,"delta":'
        self._null_usage = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._close = b',"logprobs":null,"finish_reason":null}]' + self._null_usage
        self._content = self._delta + b'{"content":'

    def role(self) -> bytes:
        return self._delta + b'{"role":"assistant","content":""}' + self._close

    def content(self, text: str) -> bytes:
        return self._content + orjson.dumps(text) + b"}" + self._close

    def finish(self, reason: FinishReason) -> bytes:
        quoted = b'"' + reason.encode() + b'"'
        return self._delta + b'{},"logprobs":null,"finish_reason":' + quoted + b"}]" + self._null_usage

    def usage(self, usage: Usage) -> bytes:
        return self._open + b'],"usage":' + orjson.dumps(usage.body()) + b"}\n\n"


def error(problem: Problem) -> bytes:
    """An error after the stream began: clients raise it or retry, and never wait for more."""
    return b"data: " + problem.encode() + b"\n\n"

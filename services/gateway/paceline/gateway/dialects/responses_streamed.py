"""The output items of a streamed response: each collects what it says, and knows the events that tell of it.

An event of more text is a template around one string, because a stream writes one per step and only the text differs.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from paceline.gateway.deltas import TokenLogprob
from paceline.gateway.dialects.responses_output import (
    Names,
    Status,
    call_item,
    logged,
    message_item,
    reasoning_item,
    text_part,
    thought_part,
)

Event: TypeAlias = tuple[str, dict[str, Any]]
"""Its type, and its fields but for the type and the number."""


class _More:
    """Events of one type that tell of more text."""

    def __init__(self, kind: str, at: dict[str, Any]) -> None:
        self._before = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        self._after = b"," + orjson.dumps(at)[1:-1] + b',"delta":'

    def event(self, number: int, text: str, rest: bytes = b"") -> bytes:
        return b"%b%d%b%b%b}\n\n" % (self._before, number, self._after, orjson.dumps(text), rest)


class MessageItem:
    """What the client reads; with `log` the log probabilities of its tokens as well."""

    def __init__(self, item_id: str, place: int, *, log: bool) -> None:
        self._id, self._place, self._log = item_id, place, log
        self._at = {"item_id": item_id, "output_index": place, "content_index": 0}
        self._more = _More("response.output_text.delta", self._at)
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def more(self, number: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        self._texts.append(text)
        if not self._log:
            return self._more.event(number, text, b',"logprobs":[]')
        self.log(logprobs)
        return self._more.event(number, text, b',"logprobs":' + orjson.dumps(logged(logprobs)))

    def log(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Tokens that made no text."""
        self._logprobs += logprobs

    def body(self, status: Status) -> dict[str, Any]:
        return message_item(self._id, status, [self._part()])

    def opening(self) -> Iterator[Event]:
        yield _added(self._place, message_item(self._id, "in_progress", []))
        yield "response.content_part.added", {**self._at, "part": text_part("", [])}

    def closing(self, status: Status) -> Iterator[Event]:
        part = self._part()
        said = {"text": part["text"], "logprobs": part["logprobs"]}
        yield "response.output_text.done", {**self._at, **said}
        yield "response.content_part.done", {**self._at, "part": part}
        yield _done(self._place, self.body(status))

    def _part(self) -> dict[str, Any]:
        return text_part("".join(self._texts), self._logprobs)


class ReasoningItem:
    """What the model thinks."""

    def __init__(self, item_id: str, place: int) -> None:
        self._id, self._place = item_id, place
        self._at = {"item_id": item_id, "output_index": place, "content_index": 0}
        self._more = _More("response.reasoning_text.delta", self._at)
        self._texts: list[str] = []

    def more(self, number: int, text: str) -> bytes:
        self._texts.append(text)
        return self._more.event(number, text)

    def body(self, status: Status) -> dict[str, Any]:
        return reasoning_item(self._id, status, [self._part()])

    def opening(self) -> Iterator[Event]:
        yield _added(self._place, reasoning_item(self._id, "in_progress", []))
        yield "response.content_part.added", {**self._at, "part": thought_part("")}

    def closing(self, status: Status) -> Iterator[Event]:
        part = self._part()
        yield "response.reasoning_text.done", {**self._at, "text": part["text"]}
        yield "response.content_part.done", {**self._at, "part": part}
        yield _done(self._place, self.body(status))

    def _part(self) -> dict[str, Any]:
        return thought_part("".join(self._texts))


class CallItem:
    """A call of the function that the model knows as `name`."""

    def __init__(self, item_id: str, place: int, call_id: str, name: str, names: Names) -> None:
        self._id, self._place, self._call_id, self._name, self._names = item_id, place, call_id, name, names
        self._at = {"item_id": item_id, "output_index": place}
        self._more = _More("response.function_call_arguments.delta", self._at)
        self._texts: list[str] = []

    def more(self, number: int, text: str) -> bytes:
        self._texts.append(text)
        return self._more.event(number, text)

    def body(self, status: Status) -> dict[str, Any]:
        arguments = "".join(self._texts)
        return call_item(self._id, status, self._call_id, self._name, arguments, self._names)

    def opening(self) -> Iterator[Event]:
        yield _added(self._place, self.body("in_progress"))

    def closing(self, status: Status) -> Iterator[Event]:
        item = self.body(status)
        done = {**self._at, "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
        yield _done(self._place, item)


OutputItem: TypeAlias = MessageItem | ReasoningItem | CallItem


def _added(place: int, item: dict[str, Any]) -> Event:
    return "response.output_item.added", {"output_index": place, "item": item}


def _done(place: int, item: dict[str, Any]) -> Event:
    return "response.output_item.done", {"output_index": place, "item": item}

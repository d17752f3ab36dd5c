"""The bytes of a streamed response: numbered server-sent events, each named by its type.

One item is open at a time. What belongs to another one closes it, so that clients can act on a call once it is whole.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from paceline.contracts.errors import InternalError
from paceline.gateway import sse
from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import CallArguments, CallBegun, Delta, End, Reasoning, Text, TokenLogprob
from paceline.gateway.dialects.responses_object import begun, ended, failed
from paceline.gateway.dialects.responses_output import Names, Status, item_id
from paceline.gateway.dialects.responses_streamed import CallItem, MessageItem, OutputItem, ReasoningItem
from paceline.gateway.errors import Problem

NewItem = TypeVar("NewItem", bound=OutputItem)


class ResponseEvents:
    """A `Renderer`. `keep` is given the response that ended. The pieces of a call's arguments follow its beginning
    before anything else comes."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(
        self,
        head: Head,
        frame: dict[str, Any],
        names: Names,
        *,
        log: bool,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._head = head
        self._frame = frame
        self._names = names
        self._log = log
        self._keep = keep
        self._number = 0
        self._open: OutputItem | None = None
        self._call = -1
        self._output: list[dict[str, Any]] = []
        self._unlogged: list[TokenLogprob] = []
        self._cut = False

    def begin(self, usage: Usage) -> bytes:
        return self._begin()

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes:
        if self._log:
            self._unlogged += logprobs
        return b"".join([self._delta(delta) for delta in deltas])

    def finish(self, choice: int, end: End) -> bytes:
        self._cut = end.reason == "length"
        opened = b""
        if self._open is None:
            opened, _ = self._switch(self._message())
        if isinstance(self._open, MessageItem):
            self._open.log(self._unlogged)
        return opened + self._close("incomplete" if self._cut else "completed")

    def end(self, usage: Usage) -> bytes:
        response = ended(self._frame, self._output, usage, cut=self._cut, at=time.time())
        self._keep(response)
        return self._event(
            "response.incomplete" if self._cut else "response.completed", {"response": response}
        )

    def error(self, problem: Problem) -> bytes:
        """Clients want a response to have begun before it fails."""
        begin = b"" if self._number else self._begin()
        output = [*self._output, *([self._open.body("incomplete")] if self._open else [])]
        return begin + self._event("response.failed", {"response": failed(self._frame, output, problem)})

    def _begin(self) -> bytes:
        fields = {"response": begun(self._frame)}
        return self._event("response.created", fields) + self._event("response.in_progress", fields)

    def _delta(self, delta: Delta) -> bytes:
        opened, item = b"", self._open
        match delta:
            case CallBegun(index, call_id, name):
                place = self._place()
                self._call = index
                own_id = item_id("fc", self._head, place)
                return self._switch(CallItem(own_id, place, call_id, name, self._names))[0]
            case CallArguments(index, text):
                if not isinstance(item, CallItem) or index != self._call:
                    raise InternalError(f"Arguments of call {index} came outside of it")
                return item.more(self._next(), text) if text else b""
            case Text(text) if text:
                if not isinstance(item, MessageItem):
                    opened, item = self._switch(self._message())
                logprobs, self._unlogged = self._unlogged, []
                return opened + item.more(self._next(), text, logprobs)
            case Reasoning(text) if text:
                if not isinstance(item, ReasoningItem):
                    place = self._place()
                    opened, item = self._switch(ReasoningItem(item_id("rs", self._head, place), place))
                return opened + item.more(self._next(), text)
        return b""

    def _message(self) -> MessageItem:
        place = self._place()
        return MessageItem(item_id("msg", self._head, place), place, log=self._log)

    def _place(self) -> int:
        """Where in the output the next item goes."""
        return len(self._output) + (self._open is not None)

    def _switch(self, item: NewItem) -> tuple[bytes, NewItem]:
        closed = self._close("completed")
        self._open = item
        return closed + b"".join([self._event(*event) for event in item.opening()]), item

    def _close(self, status: Status) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        self._output.append(item.body(status))
        return b"".join([self._event(*event) for event in item.closing(status)])

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._next(), **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

"""What an API has to say for the gateway to speak it. Everything here is pure: bytes and values, no sockets."""

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask
from paceline.gateway.deltas import Answer, Delta, End, TokenLogprob
from paceline.gateway.errors import Problem


class Renderer(Protocol):
    """The bytes of one streamed answer: `begin`, then `deltas` and `finish` of each choice, then `end`; or, at any
    point, `error` instead of what is left."""

    keep_alive: bytes
    """What keeps the connection open while there is nothing to say."""

    def begin(self, usage: Usage) -> bytes:
        """Before anything else, mostly when the first token is there: then `usage` knows the prompt and what of it was
        cached."""

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes: ...

    def finish(self, choice: int, end: End) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def error(self, problem: Problem) -> bytes: ...


class Spoken(Protocol):
    """A request as one dialect said it."""

    @property
    def ask(self) -> Ask: ...

    def renderer(self, head: Head) -> Renderer:
        """For a streamed answer."""

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        """The JSON body of an answer that is not streamed."""


class Dialect(Protocol):
    """One API's way to ask for tokens."""

    name: str
    """As logs and traces name it."""

    def parse(self, body: bytes, *, vocab: int) -> Spoken:
        """Raises `InvalidRequest` whose `param` is the path of the first thing that is wrong."""

    def problem(self, problem: Problem, request_id: str) -> Any:
        """The JSON body of an error response."""

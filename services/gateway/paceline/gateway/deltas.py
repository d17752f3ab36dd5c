"""What an answer is made of, piece by piece, before a dialect gives it a form."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

EndReason: TypeAlias = Literal["stop", "length", "tool_calls"]
"""Why an answer ended; "tool_calls" when it holds calls and was not cut short."""


# Structs, as there is one for each token.
class Text(msgspec.Struct, frozen=True):
    """More of what the client reads."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """More of what the model thinks."""

    text: str


class CallBegun(msgspec.Struct, frozen=True):
    """The answer's call number `index`, from 0. `id` is unique in the world."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the arguments of call `index`: JSON text, whole once all pieces are joined."""

    index: int
    text: str


Delta: TypeAlias = Text | Reasoning | CallBegun | CallArguments
"""A call's arguments follow its begin before anything else does."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """The bytes of a token of the answer, the natural logarithm of its probability, and the likeliest (bytes, logprob)
    in its place, likeliest first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


@dataclass(frozen=True, slots=True)
class End:
    """`stop` is the stop string that ended the answer, if one did."""

    reason: EndReason
    stop: str | None = None


@dataclass(slots=True)
class ToolCall:
    """A call in full; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """One choice of an answer that is not streamed: what its deltas add up to."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the tokens that are `text`
    end: End = End("stop")

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Text(text):
                    self.text += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegun(_, id, name):
                    self.calls.append(ToolCall(id, name))
                case CallArguments(index, text):
                    self.calls[index].arguments += text

"""What the gateway asks of a family's way to write reasoning and tool calls."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.gateway.ask import Shape, ToolUse
from paceline.gateway.deltas import Delta


class Parser(Protocol):
    """One answer, as it comes. What comes out does not depend on how the text was cut: sum(deltas) is the same.

    A parser never fails: what is no call of the family's form is text, and a call that is cut short keeps the
    arguments that it has.
    """

    def push(self, text: str) -> list[Delta]:
        """More text: whole characters."""

    def special(self, token: str) -> list[Delta]:
        """A special token, by its content, such as "<|tool_call_begin|>"."""

    def finish(self) -> list[Delta]:
        """What was held back, at the end of the answer."""


class Format(Protocol):
    """One family's form."""

    name: str

    def parser(self, tools: ToolUse | None, new_id: Callable[[], str], *, thinking: bool) -> Parser | None:
        """For one answer, None where all of it is text. Without `tools`, or with choice "none", calls are text.

        `new_id` makes ids of calls. `thinking` when the prompt ends inside the model's reasoning, as with a template
        that opens it."""

    def grammar(self, tools: ToolUse | None, shape: Shape | None, *, thinking: bool) -> str | None:
        """The llguidance grammar (JSON of a TopLevelGrammar) that the answer's tokens must follow, or None where the
        model is free: no `shape`, and tools that are neither required nor strict. `thinking` as for `parser`; a
        model that reasons does so freely before the constrained part.

        Raises `InvalidRequest` naming the keyword of a schema that cannot be supported."""

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages for the family's template, such as with ids of calls in the form that it was trained on."""

"""Items to the messages that chat templates take.

What one answer said comes as several items (reasoning, message, calls), but templates were made for one assistant
message with all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.chat_messages import called
from paceline.gateway.dialects.responses_items import (
    ROLES,
    CallOutput,
    CustomCall,
    FunctionCall,
    Item,
    Message,
    Thought,
    text_of,
)
from paceline.gateway.dialects.responses_tools import offered_name

_BETWEEN = "\n\n"


def messages(instructions: str | None, items: Iterable[Item]) -> list[dict[str, Any]]:
    """`items` hold no references. Raises `InvalidRequest` for the output of a call that nobody made."""
    turns = _Turns()
    if instructions:
        turns.said("system", instructions)
    for item in items:
        turns.add(item)
    turns.close()
    return turns.messages


@dataclass(slots=True)
class _Answer:
    """What the assistant did between two messages of others."""

    thoughts: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": _BETWEEN.join(self.texts)}
        if self.thoughts:
            message["reasoning_content"] = _BETWEEN.join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class _Turns:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._answer = _Answer()
        self._names: dict[str, str] = {}  # of functions, by the id of their call

    def add(self, item: Item) -> None:
        match item.value:
            case Message("assistant", content):
                self._answer.texts.append(text_of(content))
            case Message(role, content):
                self.said(ROLES[role], text_of(content))
            case Thought(content, summary):
                if thought := text_of(content or summary or ""):
                    self._answer.thoughts.append(thought)
            case FunctionCall(call_id, name, arguments, namespace):
                self._called(call_id, offered_name(namespace, name), arguments)
            case CustomCall(call_id, name, text, namespace):
                self._called(call_id, offered_name(namespace, name), orjson.dumps({"input": text}).decode())
            case CallOutput(call_id, output):
                self._returned(call_id, text_of(output))

    def said(self, role: str, content: str) -> None:
        self.close()
        # Many templates take a system message in the first place only.
        if role == "system" and len(self.messages) == 1 and self.messages[0]["role"] == "system":
            self.messages[0]["content"] += _BETWEEN + content
        else:
            self.messages.append({"role": role, "content": content})

    def close(self) -> None:
        """The answer is over. Thoughts that led to nothing are left out."""
        if self._answer.texts or self._answer.calls:
            self.messages.append(self._answer.message())
        self._answer = _Answer()

    def _called(self, call_id: str, name: str, arguments: str) -> None:
        self._names[call_id] = name
        self._answer.calls.append(called(call_id, name, arguments))

    def _returned(self, call_id: str, output: str) -> None:
        if call_id not in self._names:
            raise InvalidRequest(f"No call with the id {call_id!r} precedes its output", param="input")
        self.close()
        self.messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": self._names[call_id], "content": output}
        )

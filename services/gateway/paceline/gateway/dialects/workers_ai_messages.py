"""Messages and tools as Workers AI's clients write them, in chat completions' terms.

Calls come in OpenAI's form, or flat and without ids, as Workers AI itself once gave them.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.chat_messages import (
    MAX_CALLS,
    MAX_PARTS,
    Call,
    CalledFunction,
    ChatMessage,
    Part,
)
from paceline.gateway.dialects.chat_tools import MAX_NAME, Function, ToolSpec


class RunCall(msgspec.Struct, frozen=True):
    """A tool call of an earlier answer."""

    id: str | None = None
    name: str | None = None
    arguments: Raw = Raw()
    function: CalledFunction | None = None


class RunMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the conversation."""

    role: str
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[RunCall], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None


class RunTool(msgspec.Struct, frozen=True):
    """A tool, in OpenAI's form or flat."""

    type: str = "function"
    function: Function | None = None
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    description: str | None = None
    parameters: Raw = Raw()


def chat_messages(messages: Sequence[RunMessage]) -> list[ChatMessage]:
    """A call without id gets one, the same whenever the conversation is sent again. A tool's message without one
    answers the earliest call that waits for an answer, of its own name where it has one.

    Raises `InvalidRequest` for a call without name."""
    waiting: dict[str, str] = {}
    chat: list[ChatMessage] = []
    for i, message in enumerate(messages):
        calls = [
            _call(call, f"call_{i}_{j}", f"messages[{i}].tool_calls[{j}]")
            for j, call in enumerate(message.tool_calls or ())
        ]
        waiting.update((call.id, call.function.name) for call in calls)
        answered = message.tool_call_id
        if message.role == "tool":
            if answered is None:
                answered = _earliest(waiting, message.name) or f"call_{i}"
            waiting.pop(answered, None)
        chat.append(
            ChatMessage(
                role=message.role,
                content=message.content,
                name=message.name,
                reasoning_content=message.reasoning_content,
                tool_calls=calls,
                tool_call_id=answered,
            )
        )
    return chat


def tool_specs(tools: Sequence[RunTool] | None) -> list[ToolSpec]:
    """Raises `InvalidRequest` for a tool without name."""
    return [_spec(tool, f"tools[{i}]") for i, tool in enumerate(tools or ())]


def _call(call: RunCall, new_id: str, at: str) -> Call:
    if call.function is not None:
        return Call(call.id or new_id, call.function)
    if call.name is None:
        raise InvalidRequest("A call names its function", param=f"{at}.name")
    return Call(call.id or new_id, CalledFunction(call.name, call.arguments))


def _earliest(waiting: dict[str, str], name: str | None) -> str | None:
    return next((call_id for call_id, called in waiting.items() if name in (None, called)), None)


def _spec(tool: RunTool, at: str) -> ToolSpec:
    if tool.function is not None or tool.type != "function":
        return ToolSpec(tool.type, tool.function)
    if tool.name is None:
        raise InvalidRequest("A tool needs a name", param=f"{at}.name")
    return ToolSpec(tool.type, Function(tool.name, tool.description, tool.parameters))

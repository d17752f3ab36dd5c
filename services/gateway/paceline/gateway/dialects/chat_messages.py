"""The messages of a chat completion: what clients send, and what templates take."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, field

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.amount import check_amount
from paceline.gateway.dialects.decoding import decode_within

MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
MAX_CALLS = 1024
MAX_ARGUMENTS = 512 << 10
MAX_OPTIONS_BYTES = 64 << 10

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text", "refusal"]})]
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """What an earlier answer called. `arguments` is JSON text in a string, or an object where a client sends one."""

    name: str
    arguments: Raw = field(default_factory=Raw)


class Call(msgspec.Struct, frozen=True):
    """A tool call of an earlier answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the conversation. `reasoning` is what some clients call `reasoning_content`."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(_ROLES)})]
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[Call], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Raises `InvalidRequest` for the first thing that no template could take."""
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    for i, message in enumerate(messages):
        at = f"messages[{i}]"
        if message.role not in _ROLES:
            roles = ", ".join(_ROLES)
            raise InvalidRequest(f"{message.role!r} is not one of {roles}", param=f"{at}.role")
        if message.content is None and message.role != "assistant":
            raise InvalidRequest("content may be null for assistant messages only", param=f"{at}.content")
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest("Only the assistant calls tools", param=f"{at}.tool_calls")
        if message.role == "tool" and message.tool_call_id is None:
            raise InvalidRequest("A tool's message names its call", param=f"{at}.tool_call_id")
        if isinstance(message.content, list):
            _check_parts(message.content, message.role, f"{at}.content")
        for j, call in enumerate(message.tool_calls or ()):
            if call.type != "function":
                raise InvalidRequest(
                    f"Calls of type {call.type!r} are not supported", param=f"{at}.tool_calls[{j}].type"
                )


def _check_parts(parts: list[Part], role: str, at: str) -> None:
    for i, part in enumerate(parts):
        if part.type == "refusal" and role == "assistant":
            continue
        if part.type != "text":
            raise InvalidRequest(f"Content of type {part.type!r} is not supported", param=f"{at}[{i}].type")
        if part.text is None:
            raise InvalidRequest("A text part needs text", param=f"{at}[{i}].text")


def conversation(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As chat templates take them: content is one string, parts joined by newlines."""
    names = {call.id: call.function.name for m in messages for call in m.tool_calls or ()}
    return [_message(m, names) for m in messages]


def template_options(field: Raw) -> dict[str, Any]:
    """Variables for the template, as vLLM's clients send them. Raises `InvalidRequest`."""
    options = decode_within(field, MAX_OPTIONS_BYTES, "chat_template_kwargs")
    if not isinstance(options or {}, dict):
        raise InvalidRequest("chat_template_kwargs is a JSON object", param="chat_template_kwargs")
    return dict(options or {})


def _message(message: ChatMessage, names: dict[str, str]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": _ROLES[message.role], "content": _text(message)}
    if reasoning := message.reasoning_content or message.reasoning:
        turn["reasoning_content"] = reasoning
    if message.tool_calls:
        turn["tool_calls"] = [called(c.id, c.function.name, _arguments(c)) for c in message.tool_calls]
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id
        if name := message.name or names.get(message.tool_call_id or ""):
            turn["name"] = name
    return turn


def called(call_id: str, name: str, arguments: str | dict[str, Any]) -> dict[str, Any]:
    """A call for a template, which writes arguments as JSON by itself. What is no JSON object, because an answer was
    cut short, stays the text that it is; so does what is very long, which would take a second to read."""
    value = _object(arguments) if isinstance(arguments, str) else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}


def _arguments(call: Call) -> str:
    text = bytes(call.function.arguments)
    try:
        if text[:1] == b'"':
            return msgspec.json.decode(text, type=str)
        return "" if text == b"null" else text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequest(f"Arguments of the call {call.id!r} are not valid: {e}", param="messages") from e


def _object(text: str) -> str | dict[str, Any]:
    if len(text) > MAX_ARGUMENTS:
        return text
    try:
        check_amount(text.encode())
        value = msgspec.json.decode(text or "{}")
    except (InvalidRequest, msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text or part.refusal or "" for part in message.content)
    return message.content or message.refusal or ""

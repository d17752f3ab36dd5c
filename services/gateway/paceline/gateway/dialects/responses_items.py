"""The items of a Responses request's input, each read by its own type.

Unknown fields are ignored; an unknown type of item or of content is refused by name, as the model would not see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.decoding import decode

MAX_PARTS = 10_000

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What each role is to a chat template."""

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")

T = TypeVar("T")


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a content."""

    type: str
    text: str | None = None
    refusal: str | None = None


Parts: TypeAlias = Annotated[list[Part], Meta(max_length=MAX_PARTS)]
Content: TypeAlias = str | Parts


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody said."""

    role: str
    content: Content
    id: str | None = None


class Thought(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model thought; nobody but its maker reads an `encrypted_content`."""

    content: Parts | None = None
    summary: Parts | None = None
    id: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an earlier answer called; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None


class CustomCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an earlier answer of another model called, with free text."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None
    id: str | None = None


class CallOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a call."""

    call_id: str
    output: Content
    id: str | None = None


class Reference(msgspec.Struct, frozen=True):
    """An item of a stored response, by its id."""

    id: str


Value: TypeAlias = Message | Thought | FunctionCall | CustomCall | CallOutput | Reference


@dataclass(frozen=True, slots=True)
class Item:
    """An item as it was sent, its type, and what it says."""

    json: bytes
    kind: str
    value: Value


class _Kind(msgspec.Struct, frozen=True):
    """What tells items apart; messages and references may leave their type out."""

    type: str | None = None
    role: str | None = None
    id: str | None = None


_kind = msgspec.json.Decoder(_Kind)

_DECODERS: dict[str, msgspec.json.Decoder[Value]] = {
    name: msgspec.json.Decoder(cls)
    for name, cls in {
        "message": Message,
        "reasoning": Thought,
        "function_call": FunctionCall,
        "function_call_output": CallOutput,
        "custom_tool_call": CustomCall,
        "custom_tool_call_output": CallOutput,
        "item_reference": Reference,
    }.items()
}


def read_item(json: bytes | Raw, at: str) -> Item:
    """The item that lies at the path `at`. Raises `InvalidRequest` for the first thing that is wrong with it."""
    data = bytes(json)
    kind = _read(_kind, data, at)
    name = kind.type or ("message" if kind.role else "item_reference" if kind.id else None)
    if name is None:
        raise InvalidRequest("An item needs a type", param=f"{at}.type")
    if name not in _DECODERS:
        raise InvalidRequest(f"Items of type {name!r} are not supported", param=f"{at}.type")
    value = _read(_DECODERS[name], data, at)
    match value:
        case Message(role, content):
            if role not in ROLES:
                raise InvalidRequest(f"{role!r} is not one of {', '.join(ROLES)}", param=f"{at}.role")
            _check_parts(content, f"{at}.content")
        case CallOutput(_, output):
            _check_parts(output, f"{at}.output")
        case Thought(content, summary):
            _check_parts(content or (), f"{at}.content")
            _check_parts(summary or (), f"{at}.summary")
    return Item(data, name, value)


def text_of(content: str | Sequence[Part]) -> str:
    """A content as one string, parts joined by newlines."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text or part.refusal or "" for part in content)


def _read(decoder: msgspec.json.Decoder[T], json: bytes, at: str) -> T:
    try:
        return decode(decoder, json)
    except InvalidRequest as e:
        raise InvalidRequest(e.message, param=f"{at}.{e.param}" if e.param else at) from e


def _check_parts(content: str | Sequence[Part], at: str) -> None:
    if isinstance(content, str):
        return
    for i, part in enumerate(content):
        if part.type not in (*_TEXT_PARTS, "refusal"):
            raise InvalidRequest(f"Content of type {part.type!r} is not supported", param=f"{at}[{i}].type")
        field = "refusal" if part.type == "refusal" else "text"
        if getattr(part, field) is None:
            raise InvalidRequest(f"Content of type {part.type} needs {field}", param=f"{at}[{i}].{field}")

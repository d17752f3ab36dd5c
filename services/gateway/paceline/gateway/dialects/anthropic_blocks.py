"""Turns and content blocks of POST /v1/messages, as clients send them.

Fields that no prompt shows, such as cache_control and citations, are not listed and so ignored: a prompt stays the same
when a client moves its cache breakpoints. Which blocks a turn may hold is said by its type.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw

MAX_TURNS = 10_000
MAX_BLOCKS = 10_000


class Block(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the blocks, told apart by `type`."""


class TextBlock(Block, frozen=True, tag="text"):
    """What is read."""

    text: str


class ThinkingBlock(Block, frozen=True, tag="thinking"):
    """What the model thought. Its signature is not checked: who can write the prompt can write this too."""

    thinking: str


class RedactedThinkingBlock(Block, frozen=True, tag="redacted_thinking"):
    """What another service's model thought, encrypted for that service alone."""


class ToolUseBlock(Block, frozen=True, tag="tool_use"):
    """A call; `input` is a JSON object."""

    id: str
    name: str
    input: Raw


Texts: TypeAlias = str | Annotated[list[TextBlock], Meta(max_length=MAX_BLOCKS)]


class ToolResultBlock(Block, frozen=True, tag="tool_result"):
    """What came of a call."""

    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = None


class UserTurn(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    """What the user says and what the tools answered."""

    content: str | Annotated[list[TextBlock | ToolResultBlock], Meta(max_length=MAX_BLOCKS)]


class AssistantTurn(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    """An earlier answer."""

    content: (
        str
        | Annotated[
            list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock],
            Meta(max_length=MAX_BLOCKS),
        ]
    )


class SystemTurn(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    """An instruction in mid-conversation."""

    content: Texts


Turn: TypeAlias = UserTurn | AssistantTurn | SystemTurn


def joined(content: Texts | None) -> str:
    """The text of some blocks, a line break between two."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content or ())

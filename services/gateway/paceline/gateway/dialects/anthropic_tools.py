"""Tools as Anthropic's Messages offer them."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import Named, Tool, ToolChoice, ToolUse
from paceline.gateway.dialects.chat_tools import schema_of

_Name = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,128}\Z")]


class ToolSpec(msgspec.Struct, frozen=True):
    """One tool. `type` is absent or "custom", or names a tool that Anthropic defines or runs itself."""

    name: _Name | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Raw = Raw()
    strict: bool | None = None


class AnyTool(msgspec.Struct, frozen=True, tag_field="type", tag="any"):
    """Some tool has to be called."""

    disable_parallel_tool_use: bool | None = None


class AutoChoice(msgspec.Struct, frozen=True, tag_field="type", tag="auto"):
    """The model decides."""

    disable_parallel_tool_use: bool | None = None


class OneTool(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """This tool has to be called."""

    name: str
    disable_parallel_tool_use: bool | None = None


class NoTool(msgspec.Struct, frozen=True, tag_field="type", tag="none"):
    """No tool may be called."""


Choice: TypeAlias = AnyTool | AutoChoice | OneTool | NoTool


def tool_use(specs: Sequence[ToolSpec] | None, choice: Choice | None) -> ToolUse | None:
    """What the model is offered. Tools that Anthropic defines and that come without a schema are left out: nothing here
    knows what they take.

    Raises `InvalidRequest` for a tool that is incomplete or has another's name, and for a choice that cannot be met.
    """
    offered: dict[str, Tool] = {}
    for i, spec in enumerate(specs or ()):
        tool = _tool(spec, f"tools[{i}]")
        if tool is None:
            continue
        if tool.name in offered:
            raise InvalidRequest(f"Two tools are called {tool.name!r}", param=f"tools[{i}].name")
        offered[tool.name] = tool
    if isinstance(choice, OneTool) and choice.name not in offered:
        raise InvalidRequest(f"No tool is called {choice.name!r}", param="tool_choice.name")
    if isinstance(choice, AnyTool) and not offered:
        raise InvalidRequest("tool_choice needs tools with an input_schema", param="tool_choice")
    if not offered:
        return None
    serial = isinstance(choice, AutoChoice | AnyTool | OneTool) and choice.disable_parallel_tool_use
    return ToolUse(tuple(offered.values()), _chosen(choice), parallel=not serial)


def _tool(spec: ToolSpec, at: str) -> Tool | None:
    if bytes(spec.input_schema) in (b"", b"null"):
        if spec.type not in (None, "custom"):
            return None
        raise InvalidRequest("A tool needs an input_schema", param=f"{at}.input_schema")
    if spec.name is None:
        raise InvalidRequest("A tool needs a name", param=f"{at}.name")
    schema = schema_of(spec.input_schema, f"{at}.input_schema")
    return Tool(spec.name, spec.description, schema, bool(spec.strict))


def _chosen(choice: Choice | None) -> ToolChoice:
    match choice:
        case AnyTool():
            return "required"
        case OneTool(name):
            return Named(name)
        case NoTool():
            return "none"
        case AutoChoice() | None:
            return "auto"

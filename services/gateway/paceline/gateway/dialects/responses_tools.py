"""The tools of a Responses request: what the model is offered of them, and under which names.

Clients send tools that only OpenAI's servers run. Those are left out with a warning, as agents go on without them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import Named, Tool, ToolChoice, ToolUse
from paceline.gateway.dialects.chat_tools import MAX_NAME, MAX_TOOLS, NO_PARAMETERS, schema_of

_SEPARATOR = "__"


class ToolSpec(msgspec.Struct, frozen=True):
    """One of a request's tools. Functions may come in a namespace, which has `tools` of its own."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None
    tools: list["ToolSpec"] | None = None


class ToolRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool by its name."""

    type: str
    name: str | None = None
    namespace: str | None = None


class ChosenTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tool that has to be called or, of type allowed_tools, those that may be."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolRef] | None = None


Choice: TypeAlias = Literal["none", "auto", "required"] | ChosenTool


@dataclass(frozen=True, slots=True)
class Offer:
    """`shown` are the offered tools as a response shows them. `names` tells (namespace, name) of functions in a
    namespace by the name that the model knows."""

    use: ToolUse | None
    shown: tuple[dict[str, Any], ...]
    names: Mapping[str, tuple[str, str]]
    warnings: tuple[str, ...]


def offered_name(namespace: str | None, name: str) -> str:
    """What the model calls a function. Parsers of calls know no namespaces, and no dots in names."""
    if namespace is None:
        return name
    return namespace.rstrip("_") + _SEPARATOR + name.lstrip("_")


def offer(specs: Sequence[ToolSpec] | None, choice: Choice | None, *, parallel: bool) -> Offer:
    """Raises `InvalidRequest` for a function without a name or with another's, and for a choice that cannot be met."""
    reading = _Reading()
    shown = [tool for i, spec in enumerate(specs or ()) if (tool := reading.tool(spec, f"tools[{i}]"))]
    tools, chosen = _chosen(choice, tuple(reading.tools.values()))
    if not tools and chosen not in ("none", "auto"):
        raise InvalidRequest("tool_choice needs tools, of type function", param="tool_choice")
    use = ToolUse(tools, chosen, parallel) if tools else None
    return Offer(use, tuple(shown), reading.names, tuple(reading.warnings))


class _Reading:
    """Each method returns how a response shows the tool."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.names: dict[str, tuple[str, str]] = {}
        self.warnings: list[str] = []

    def tool(self, spec: ToolSpec, at: str) -> dict[str, Any] | None:
        if spec.type == "namespace":
            return self._namespace(spec, at)
        return self._function(spec, None, at)

    def _namespace(self, spec: ToolSpec, at: str) -> dict[str, Any]:
        name = _name(spec, at)
        inner = enumerate(spec.tools or ())
        tools = [tool for i, t in inner if (tool := self._function(t, name, f"{at}.tools[{i}]"))]
        return {"type": "namespace", "name": name, "description": spec.description, "tools": tools}

    def _function(self, spec: ToolSpec, namespace: str | None, at: str) -> dict[str, Any] | None:
        if spec.type != "function":
            self.warnings.append(f"{at}: tools of type {spec.type!r} are ignored")
            return None
        own = _name(spec, at)
        name = offered_name(namespace, own)
        if name in self.tools:
            raise InvalidRequest(f"Two tools are called {name!r}", param=f"{at}.name")
        if len(self.tools) == MAX_TOOLS:
            raise InvalidRequest(f"At most {MAX_TOOLS} functions are allowed", param="tools")
        parameters = schema_of(spec.parameters, f"{at}.parameters", NO_PARAMETERS)
        self.tools[name] = Tool(name, spec.description, parameters, bool(spec.strict))
        if namespace is not None:
            self.names[name] = (namespace, own)
        return {
            "type": "function",
            "name": own,
            "description": spec.description,
            "parameters": parameters,
            "strict": bool(spec.strict),
        }


def _name(spec: ToolSpec, at: str) -> str:
    if not spec.name or len(spec.name) > MAX_NAME:
        raise InvalidRequest(f"A tool's name has 1 to {MAX_NAME} characters", param=f"{at}.name")
    return spec.name


def _chosen(choice: Choice | None, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], ToolChoice]:
    """The tools that are left to the model, and whether it has to call them."""
    if not isinstance(choice, ChosenTool):
        return tools, choice or "auto"
    names = {tool.name for tool in tools}
    match choice.type:
        case "function":
            return tools, Named(_known(choice, names, "tool_choice"))
        case "allowed_tools":
            refs = enumerate(choice.tools or ())
            allowed = {_known(ref, names, f"tool_choice.tools[{i}]") for i, ref in refs}
            return tuple(tool for tool in tools if tool.name in allowed), choice.mode or "auto"
    raise InvalidRequest(f"A tool of type {choice.type!r} cannot be chosen here", param="tool_choice.type")


def _known(ref: ChosenTool | ToolRef, names: set[str], at: str) -> str:
    if ref.type != "function":
        raise InvalidRequest(f"A tool of type {ref.type!r} cannot be chosen here", param=f"{at}.type")
    name = offered_name(ref.namespace, ref.name or "")
    if name not in names:
        raise InvalidRequest(f"No function is called {name!r}", param=f"{at}.name")
    return name

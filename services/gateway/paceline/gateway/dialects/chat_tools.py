"""Tools and the shape of an answer, as chat completions ask for them."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, field

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import JsonSchema, Lark, Named, Regex, Shape, Tool, ToolChoice, ToolUse
from paceline.gateway.dialects.decoding import decode_within

MAX_TOOLS = 1024
MAX_NAME = 256
MAX_SCHEMA_BYTES = 256 << 10
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

# With the field that each needs.
_FORMATS = {
    "text": None,
    "json_object": None,
    "json_schema": "json_schema",
    "regex": "pattern",
    "lark": "grammar",
}


class Function(msgspec.Struct, frozen=True):
    """A function that may be called."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    description: str | None = None
    parameters: Raw = field(default_factory=Raw)
    strict: bool | None = None


class ToolSpec(msgspec.Struct, frozen=True):
    """One of a request's tools."""

    type: Annotated[str, Meta(extra_json_schema={"const": "function"})]
    function: Function | None = None


class ChosenFunction(msgspec.Struct, frozen=True):
    """The function that has to be called."""

    name: str


class ChosenTool(msgspec.Struct, frozen=True):
    """The tool that has to be called."""

    type: str
    function: ChosenFunction | None = None


class NamedSchema(msgspec.Struct, frozen=True):
    """The schema of a `json_schema` format."""

    name: str
    schema: Raw = field(default_factory=Raw)
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """What the text must look like. Beyond OpenAI's types: "regex" with `pattern`, "lark" with `grammar`."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(_FORMATS)})]
    json_schema: NamedSchema | None = None
    pattern: str | None = None
    grammar: str | None = None


Choice = Literal["none", "auto", "required"] | ChosenTool


def tool_use(tools: Sequence[ToolSpec] | None, choice: Choice | None, *, parallel: bool) -> ToolUse | None:
    """Raises `InvalidRequest` for tools of another type than function, and for a choice that cannot be met."""
    offered = tuple(_tool(spec, f"tools[{i}]") for i, spec in enumerate(tools or ()))
    names: set[str] = set()
    for i, tool in enumerate(offered):
        if tool.name in names:
            raise InvalidRequest(f"Two tools are called {tool.name!r}", param=f"tools[{i}].function.name")
        names.add(tool.name)
    chosen = _chosen(choice, names)
    if not offered:
        if chosen in ("none", "auto"):
            return None
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")
    return ToolUse(offered, chosen, parallel)


def shape(format: ResponseFormat | None) -> Shape | None:  # noqa: A002 - the field's name
    """Raises `InvalidRequest` for a format that is unknown or incomplete."""
    match format:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return JsonSchema({"type": "object"})
        case ResponseFormat(type="json_schema", json_schema=NamedSchema(schema=schema)):
            return JsonSchema(schema_of(schema, "response_format.json_schema.schema"))
        case ResponseFormat(type="regex", pattern=str(pattern)):
            return Regex(pattern)
        case ResponseFormat(type="lark", grammar=str(grammar)):
            return Lark(grammar)
    if (missing := _FORMATS.get(format.type)) is not None:
        raise InvalidRequest(f"A format of type {format.type} needs it", param=f"response_format.{missing}")
    raise InvalidRequest(f"{format.type!r} is not one of {', '.join(_FORMATS)}", param="response_format.type")


def schema_of(field: Raw, param: str, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A JSON Schema, `default` where there is none. Raises `InvalidRequest` for what is no object."""
    schema = decode_within(field, MAX_SCHEMA_BYTES, param)
    if schema is None and default is not None:
        return default
    if not isinstance(schema, dict):
        raise InvalidRequest("A schema is a JSON object", param=param)
    return schema


def _tool(spec: ToolSpec, at: str) -> Tool:
    if spec.type != "function":
        raise InvalidRequest(f"Tools of type {spec.type!r} are not supported", param=f"{at}.type")
    if spec.function is None:
        raise InvalidRequest("A tool of type function needs one", param=f"{at}.function")
    f = spec.function
    parameters = schema_of(f.parameters, f"{at}.function.parameters", NO_PARAMETERS)
    return Tool(f.name, f.description, parameters, bool(f.strict))


def _chosen(choice: Choice | None, names: Collection[str]) -> ToolChoice:
    if choice is None:
        return "auto"
    if not isinstance(choice, ChosenTool):
        return choice
    if choice.type != "function" or choice.function is None:
        raise InvalidRequest("Only a function can be chosen by name", param="tool_choice")
    if choice.function.name not in names:
        raise InvalidRequest(f"No tool is called {choice.function.name!r}", param="tool_choice.function.name")
    return Named(choice.function.name)

"""What an answer is held to, before a family says how that is written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import JsonSchema, Named, Regex, Shape, Tool, ToolUse
from paceline.gateway.formats import lark, schemas
from paceline.gateway.formats.bounds import check_grammar_bounds

_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Callee:
    """A tool that may be called, and the checked schema of its arguments. `free` when its own schema cannot be
    followed, and nobody asked for that."""

    name: str
    schema: Mapping[str, Any]
    free: bool


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an answer may hold. `forced` when it has to be a call; `single` when one at most."""

    callees: tuple[Callee, ...]
    forced: bool
    single: bool


def held_calls(tools: ToolUse | None) -> Calls | None:
    """None where calls are free: they are neither demanded nor strict. Raises `InvalidRequest` for a strict tool whose
    schema cannot be followed."""
    if tools is None or tools.choice == "none":
        return None
    chosen = [
        (number, tool)
        for number, tool in enumerate(tools.tools)
        if not isinstance(tools.choice, Named) or tool.name == tools.choice.name
    ]
    forced = tools.choice != "auto"
    if not chosen or not (forced or any(tool.strict for _, tool in chosen)):
        return None
    callees = tuple(_callee(tool, f"tools[{number}]", forced=forced) for number, tool in chosen)
    return Calls(callees, forced, isinstance(tools.choice, Named) or not tools.parallel)


def any_calls(tools: ToolUse) -> Calls:
    """Calls of any arguments, for answers whose text has a shape."""
    return Calls(tuple(Callee(tool.name, _OBJECT, True) for tool in tools.tools), False, not tools.parallel)


def check_shape(shape: Shape) -> None:
    """Raises `InvalidRequest` for a shape that cannot be followed."""
    if isinstance(shape, JsonSchema):
        schemas.check(shape.schema, "response_format")
    elif isinstance(shape, Regex):
        check_grammar_bounds(shape.pattern, "response_format")
        schemas.check_grammar(lark.regex_grammar(shape.pattern), "response_format")
    else:
        schemas.check_lark(shape.grammar, "response_format")


def _callee(tool: Tool, param: str, *, forced: bool) -> Callee:
    if not (tool.strict or forced):
        return Callee(tool.name, _OBJECT, True)
    schema = {**tool.parameters, "type": "object"}
    try:
        schemas.check(schema, param)
    except InvalidRequest:
        if tool.strict:
            raise
        return Callee(tool.name, _OBJECT, True)
    return Callee(tool.name, schema, False)

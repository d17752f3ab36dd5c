"""How much a client's schema or grammar may be, so that nobody who compiles it runs out of time or stack."""

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

from paceline.contracts.errors import InvalidRequest

_MOST_LEVELS = 100
_MOST_VALUES = 50_000

# llguidance follows by recursion what refers to what. At twice as much the stack of a thread ends, and with it the
# process.
_MOST_LINKED_LEVELS = 800
_MOST_RULES = 800
_MOST_CHARACTERS = 64 << 10

# A rule has the first of these, a group in one of the others; a schema inside of it has the first for each key.
_OPENS_RULE = ":(["


def check_schema_bounds(schema: Any, param: str) -> None:
    """Raises `InvalidRequest` for `param` for what is no schema, and for depths and sizes that no honest schema has."""
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("A schema must be an object", param=param)
    values: list[Any] = []
    level, levels = [schema], 0
    while level:
        values += level
        levels += 1
        if levels > _MOST_LEVELS:
            raise InvalidRequest(f"The schema is nested more than {_MOST_LEVELS} levels deep", param=param)
        if len(values) > _MOST_VALUES:
            raise InvalidRequest(f"The schema has more than {_MOST_VALUES} values", param=param)
        level = [part for value in level for part in _parts(value)]
    if _linked_levels(schema, values) > _MOST_LINKED_LEVELS:
        message = f"Each $ref followed once, the schema is more than {_MOST_LINKED_LEVELS} levels deep"
        raise InvalidRequest(message, param=param)


def check_grammar_bounds(grammar: str, param: str) -> None:
    """Raises `InvalidRequest` for `param` for a regex or Lark grammar that is longer than anybody writes."""
    if len(grammar) > _MOST_CHARACTERS:
        raise InvalidRequest(f"It is longer than {_MOST_CHARACTERS} characters", param=param)


def check_lark_bounds(lark: str, param: str) -> None:
    """Raises `InvalidRequest` for `param` for more rules than anybody writes."""
    check_grammar_bounds(lark, param)
    if sum(map(lark.count, _OPENS_RULE)) > _MOST_RULES:
        raise InvalidRequest(f"The grammar has more than {_MOST_RULES} rules and groups", param=param)


def _parts(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _linked_levels(schema: Any, values: list[Any]) -> int:
    """At most so deep is the way that follows each reference once. `values` are all of the schema, outer ones first."""
    heights: dict[int, int] = {}
    for value in reversed(values):
        heights[id(value)] = 1 + max((heights[id(part)] for part in _parts(value)), default=0)
    refs = {
        value["$ref"] for value in values if isinstance(value, dict) and isinstance(value.get("$ref"), str)
    }
    return heights[id(schema)] + sum(heights[id(_target(schema, ref))] for ref in refs)


def _target(root: Any, ref: str) -> Any:
    """What a reference refers to; the root where no path in it says so."""
    target = root
    for step in unquote(ref).split("/")[1:] if ref.startswith("#/") else ():
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key[:9]) < len(target):
            target = target[int(key[:9])]
        else:
            return root
    return target

"""JSON Schemas of clients, made ready for llguidance: bounded, and checked before a worker compiles them."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import llguidance

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.formats.bounds import check_lark_bounds, check_schema_bounds

_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
# Unbounded whitespace would let a model write nothing else.
_OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{1,64}"}

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)


def check(schema: Any, param: str) -> None:
    """Raises `InvalidRequest` for `param` where llguidance cannot hold an answer to this schema; the message names the
    keyword. Costs milliseconds for large schemas, once."""
    check_schema_bounds(schema, param)
    refusal = _refusal(json.dumps(prepared(schema)))
    if refusal:
        raise InvalidRequest(f"The schema is not supported: {refusal}", param=param)


def check_lark(lark: str, param: str) -> None:
    """As `check_grammar`, for a grammar that a client wrote."""
    check_lark_bounds(lark, param)
    check_grammar(lark, param)


def check_grammar(lark: str, param: str) -> None:
    """Raises `InvalidRequest` for `param` where this is no Lark grammar that llguidance can follow."""
    refusal = _grammar_refusal(json.dumps({"grammars": [{"lark_grammar": lark}]}))
    if refusal:
        raise InvalidRequest(f"The grammar is not supported: {refusal}", param=param)


def prepared(schema: Any) -> Any:
    """A checked schema as llguidance takes it. Formats that it does not know are what the standard calls annotations,
    which hold nobody to anything."""
    if isinstance(schema, bool):
        return {"x-guidance": _OPTIONS} if schema else False
    return {**mapped(schema, _without_unknown_format), "x-guidance": _OPTIONS}


def member(root: Mapping[str, Any], key: str) -> Any:
    """The schema of a property, which holds by itself although its $refs point into `root`."""
    schema = root["properties"][key]
    if '"$ref"' not in json.dumps(schema):
        return schema
    whole = {name: value for name, value in mapped(root, _moved).items() if name not in ("$id", "$schema")}
    pointer = quote(key.replace("~", "~0").replace("/", "~1"))
    return {"$defs": {"whole": whole}, "$ref": f"#/$defs/whole/properties/{pointer}"}


def mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A copy of a checked schema in which `change` was made to it and every schema inside."""
    if not isinstance(schema, dict):
        return schema
    copy = change(schema)
    for key, value in copy.items():
        if key in _BY_NAME and isinstance(value, dict):
            copy[key] = {name: mapped(inner, change) for name, inner in value.items()}
        elif key in _LISTS and isinstance(value, list):
            copy[key] = [mapped(inner, change) for inner in value]
        elif key in _SINGLE:
            copy[key] = mapped(value, change)
    return copy


def _without_unknown_format(schema: dict[str, Any]) -> dict[str, Any]:
    named = schema.get("format")
    unknown = isinstance(named, str) and named not in _FORMATS
    return {key: value for key, value in schema.items() if not (unknown and key == "format")}


def _moved(schema: dict[str, Any]) -> dict[str, Any]:
    """Its reference to the root follows the root into $defs."""
    ref = schema.get("$ref")
    if not isinstance(ref, str) or not ref.startswith("#"):
        return dict(schema)
    return {**schema, "$ref": f"#/$defs/whole{ref.removeprefix('#')}"}


@lru_cache(maxsize=1024)
def _refusal(schema: str) -> str:
    """Why llguidance refuses a schema, "" if it does not."""
    return _first_line(
        llguidance.LLMatcher.validate_grammar(f'{{"grammars": [{{"json_schema": {schema}}}]}}')
    )


@lru_cache(maxsize=256)
def _grammar_refusal(grammar: str) -> str:
    return _first_line(llguidance.LLMatcher.validate_grammar(grammar))


def _first_line(message: str) -> str:
    if message.startswith("WARNING"):
        return ""
    lines = message.strip().splitlines()
    # The reason of a regex's error stands in its last line.
    reasons = [line for line in lines if line.startswith("error: ")]
    return " ".join(lines[:1] + reasons) if lines else ""

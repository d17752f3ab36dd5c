"""Schemas of clients: which are taken, what is refused, and that none is too much."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.formats import schemas

DATA = Path(__file__).parents[4] / "shared/data/schemas"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer", "exclusiveMinimum": 0},
        {"type": "integer", "maximum": 9007199254740991},
        {"type": "string", "format": "no such format"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"enum": [f"value {n}" for n in range(20_000)]},
        {"properties": {"format": {"type": "string"}, "x": {"enum": [{"format": "none"}]}}},
    ],
)
def test_schemas_that_are_supported(schema: Any) -> None:
    schemas.check(schema, "here")


def nested(levels: int) -> Any:
    schema: Any = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def linked(links: int, levels: int) -> Any:
    """Definitions of so many `levels`, each of which ends with a reference to the next."""
    last: Any = {"type": "integer"}
    defs: dict[str, Any] = {str(links): last}
    for link in range(links):
        schema: Any = {"$ref": f"#/$defs/{link + 1}"}
        for _ in range(levels - 2):
            schema = {"type": "array", "items": schema}
        defs[str(link)] = schema
    return {"$ref": "#/$defs/0", "$defs": defs}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"oneOf": [{"type": "object"}, {"type": "object", "minProperties": 1}]}, "oneOf"),
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        (nested(100), "levels"),
        (nested(100_000), "levels"),
        (linked(9, 90), "ref"),
        (linked(20_000, 2), "ref"),
        ({"$id": "a", "allOf": [{"$ref": f"a#{n}"} for n in range(300)]}, "ref"),
        ({"enum": list(range(60_000))}, "values"),
        (False, "false"),
        ([], "object"),
        (None, "object"),
    ],
)
def test_schemas_that_are_refused_say_why(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        schemas.check(schema, "here")
    assert refused.value.param == "here"


@pytest.mark.parametrize(("links", "levels"), [(8, 85), (390, 2)])
def test_chains_of_references_that_are_supported(links: int, levels: int) -> None:
    schemas.check(linked(links, levels), "here")


def rules(number: int) -> str:
    return "\n".join(["start: r1", *(f'r{n}: r{n + 1} "."' for n in range(1, number)), f'r{number}: "x"'])


def test_grammars_of_many_rules_are_refused() -> None:
    schemas.check_lark(rules(799), "here")
    with pytest.raises(InvalidRequest, match="longer than 65536"):
        schemas.check_lark(f'start: "{"x" * 65_536}"', "here")
    for grammar in (rules(800), rules(3_000), f"start: {'(' * 900}", f'start: %json {{"enum": {"[" * 900}'):
        with pytest.raises(InvalidRequest, match="more than 800 rules") as refused:
            schemas.check_lark(grammar, "here")
        assert refused.value.param == "here"


def test_formats_are_left_out_where_they_hold_nobody_to_anything() -> None:
    schema = {
        "format": "path",
        "properties": {"format": {"format": "date"}, "b": {"anyOf": [{"format": "x", "type": "string"}]}},
        "default": {"format": "x"},
    }
    prepared = schemas.prepared(schema)
    prepared.pop("x-guidance")
    assert prepared == {
        "properties": {"format": {"format": "date"}, "b": {"anyOf": [{"type": "string"}]}},
        "default": {"format": "x"},
    }
    assert schema["format"] == "path"


def test_a_property_holds_by_itself() -> None:
    root = {
        "$id": "x",
        "properties": {"a/b c": {"items": {"$ref": "#"}}, "d": {"type": "null"}},
        "required": ["d"],
    }
    moved = {
        "properties": {"a/b c": {"items": {"$ref": "#/$defs/whole"}}, "d": {"type": "null"}},
        "required": ["d"],
    }
    assert schemas.member(root, "d") == {"type": "null"}
    assert schemas.member(root, "a/b c") == {
        "$defs": {"whole": moved},
        "$ref": "#/$defs/whole/properties/a~1b%20c",
    }


@pytest.mark.skipif(not DATA.is_dir(), reason="the public schemas are not here")
@pytest.mark.parametrize("collection", ["Glaiveai2K", "Github_easy"])
def test_few_schemas_from_the_wild_are_refused(collection: str) -> None:
    with gzip.open(DATA / f"{collection}.jsonl.gz", "rt") as lines:
        found = [json.loads(line)["schema"] for line in lines]
    refused = 0
    for schema in found:
        try:
            schemas.check(json.loads(schema) if isinstance(schema, str) else schema, "here")
        except InvalidRequest:
            refused += 1
    assert 0 < refused < 0.05 * len(found)

"""The OpenAPI document says what is decoded."""

import json

import jsonschema  # type: ignore[import-untyped]
import pytest

from paceline.gateway.openapi import document

DOCUMENT = document("1.2.3", "m")
USER = {"role": "user", "content": "hi"}


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )


def test_it_is_json_and_every_reference_is_met() -> None:
    text = json.dumps(DOCUMENT)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= DOCUMENT["components"]["schemas"].keys()
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_each_operation_has_an_answer_and_an_error() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            assert {"200", "default"} == operation["responses"].keys(), path


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5, "n": 128, "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"messages": [{"role": "tool", "tool_call_id": "x", "content": "4"}]},
    ],
)
def test_what_is_accepted_is_valid(fields: dict[str, object]) -> None:
    validator("ChatRequest").validate({"model": "m", "messages": [USER], **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "other"},
        {"temperature": 2.5},
        {"n": 0},
        {"messages": [{"role": "wizard", "content": ""}]},
        {"response_format": {"type": "xml"}},
        {"tools": [{"type": "web_search"}]},
    ],
)
def test_what_is_refused_is_not(fields: dict[str, object]) -> None:
    body = {"model": "m", "messages": [USER], **fields}
    assert not validator("ChatRequest").is_valid(body)

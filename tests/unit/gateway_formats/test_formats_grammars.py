"""Whatever a grammar lets a model say is read back as what was asked for."""

import json
import re
from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import llguidance
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import JsonSchema, Lark, Named, Regex, Shape, Tool, ToolChoice, ToolUse
from paceline.gateway.deltas import Answer
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.plain import Plain
from tests.unit.gateway_formats.sampling import Vocabulary
from tests.unit.gateway_formats.speech import FAMILIES, answer, said, tokens

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "next/~ x": {"$ref": "#/$defs/node"}},
    "required": ["on"],
    "additionalProperties": False,
}
PROPERTIES: dict[str, Any] = {
    "note": {"type": "string"},
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "kind": {"enum": ["a", 'b"c', "</think>"]},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "some": {"type": ["array", "string"], "items": {"type": "integer"}, "maxItems": 2},
    "node": {"$ref": "#/$defs/node"},
    "code": {"type": "string", "pattern": "^[A-Z]{2,3}$"},
    "part": {"type": "string", "pattern": "a/b", "maxLength": 9},
    "any": {},
}
STRICT: dict[str, Any] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["text", "kind", "code"],
    "additionalProperties": False,
    "$defs": {"node": NODE},
}
OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"const": "x"}, "c": {"type": "boolean"}},
    "additionalProperties": False,
}
TOOLS = (
    Tool("strict", None, STRICT, strict=True),
    Tool("optional", None, OPTIONAL, strict=True),
    Tool("empty", None, {"type": "object", "properties": {}, "additionalProperties": False}, strict=True),
)
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}

VOCABULARIES: dict[str, Vocabulary] = {}


def speaker(name: str, special: bool) -> tuple[Family, Vocabulary]:
    """A family whose markers are special tokens, or are not, and a vocabulary to match."""
    family = FAMILIES[name]
    markers = frozenset(m for m in (*family.markers, "<think>", "</think>") if special and m[0] == "<")
    key = " ".join(sorted(markers))
    if key not in VOCABULARIES:
        VOCABULARIES[key] = Vocabulary(markers)
    copy = object.__new__(type(family))
    copy.__dict__.update(family.__dict__, special=markers)
    return copy, VOCABULARIES[key]


def valid(made: Answer) -> int:
    """How many calls there are, all of which the tools' schemas accept."""
    for call in made.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    return len(made.calls)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("thinking", [True, False])
def test_demanded_calls_are_made_and_valid(name: str, special: bool, thinking: bool) -> None:
    family, vocabulary = speaker(name, special)
    counts = {}
    demands: list[tuple[ToolChoice, bool]] = [
        ("required", True),
        ("required", False),
        (Named("strict"), True),
    ]
    for choice, parallel in demands:
        tools = ToolUse(TOOLS, choice, parallel)
        grammar = family.grammar(tools, None, thinking=thinking)
        assert grammar is not None
        made = [
            answer(family, vocabulary.sample(grammar, seed), tools=tools, thinking=thinking)
            for seed in range(16 if parallel else 4)
        ]
        assert {one.text for one in made} == {""}
        counts[str(choice), parallel] = {valid(one) for one in made}
        if isinstance(choice, Named):
            assert {call.name for one in made for call in one.calls} == {"strict"}
    assert counts["required", False] == counts[str(Named("strict")), True] == {1}
    assert min(counts["required", True]) == 1
    assert max(counts["required", True]) > 1 or name == "harmony"


BEGINNINGS = {
    "llama3": "Hi<|python_tag|>",
    "pythonic": "Hi<|python_start|>",
    "harmony": "<|channel|>commentary to=functions.",
}


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_strict_tools_hold_the_calls_that_a_model_chooses_to_make(name: str, special: bool) -> None:
    family, vocabulary = speaker(name, special)
    tools = ToolUse(TOOLS)
    grammar = family.grammar(tools, None, thinking=False)
    assert grammar is not None
    begin = BEGINNINGS.get(name) or f"Hi{family.openers[0]}"
    for seed in range(5):
        pieces = vocabulary.sample(grammar, seed, tokens(family, begin) if special else [begin])
        made = answer(family, pieces, tools=tools)
        assert valid(made) > 0
        assert made.text == ("" if name == "harmony" else "Hi")
    hello = "<|channel|>final<|message|>Hello {[ <b>" if name == "harmony" else "Hello {[ <b>"
    matcher = llguidance.LLMatcher(vocabulary.llguidance, grammar)
    assert matcher.consume_tokens(vocabulary.encode(tokens(family, hello) if special else [hello]))
    assert matcher.is_accepting()


SHAPES: list[tuple[Shape, str]] = [
    (
        JsonSchema({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}),
        r'(?s)\{\s*"a".*\}',
    ),
    (JsonSchema({"enum": ["x", 5]}), '"x"|5'),
    (Regex("[a-c]{3}/[0-9]"), "[a-c]{3}/[0-9]"),
    (Lark('start: "yes" | NO\nNO: /no+/'), "yes|no+"),
]


@pytest.mark.parametrize(("shape", "pattern"), SHAPES)
@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("thinking", [True, False])
def test_the_visible_text_has_the_shape(name: str, shape: Shape, pattern: str, thinking: bool) -> None:
    family, vocabulary = speaker(name, True)
    grammar = family.grammar(None, shape, thinking=thinking)
    assert grammar is not None
    for seed in range(3):
        made = answer(family, vocabulary.sample(grammar, seed), tools=None, thinking=thinking)
        assert re.fullmatch(pattern, made.text)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_shaped_answer_may_still_be_a_call(name: str) -> None:
    family, vocabulary = speaker(name, True)
    tools = ToolUse(tuple(replace(tool, strict=False) for tool in TOOLS))
    grammar = family.grammar(tools, Regex("yes"), thinking=False)
    assert grammar is not None
    made = [answer(family, vocabulary.sample(grammar, seed), tools=tools) for seed in range(12)]
    assert {one.text for one in made} <= {"yes", ""}
    assert all(bool(one.calls) != bool(one.text) for one in made)
    assert any(one.text for one in made)


@pytest.mark.parametrize("choice", ["auto", "none"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_model_is_free_where_nothing_was_demanded(name: str, choice: ToolChoice) -> None:
    loose = ToolUse(tuple(replace(tool, strict=choice == "none") for tool in TOOLS), choice)
    assert FAMILIES[name].grammar(loose, None, thinking=False) is None
    assert FAMILIES[name].grammar(None, None, thinking=True) is None


def test_a_schema_that_cannot_be_followed_names_its_keyword() -> None:
    no: dict[str, Any] = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    family = FAMILIES["hermes"]
    with pytest.raises(InvalidRequest, match=r'\["not"\]') as refused:
        family.grammar(ToolUse((TOOLS[0], Tool("no", None, no, strict=True))), None, thinking=False)
    assert refused.value.param == "tools[1]"
    with pytest.raises(InvalidRequest, match="not") as refused:
        family.grammar(None, JsonSchema(no), thinking=False)
    assert refused.value.param == "response_format"
    with pytest.raises(InvalidRequest, match="regex"):
        family.grammar(None, Regex("(?=a)"), thinking=False)
    with pytest.raises(InvalidRequest, match="start"):
        family.grammar(None, Lark("begin: /a/"), thinking=False)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_tool_that_is_not_strict_may_have_any_schema(name: str) -> None:
    family, vocabulary = speaker(name, True)
    tools = ToolUse((Tool("no", None, {"type": "object", "not": {}}),), "required")
    grammar = family.grammar(tools, None, thinking=False)
    assert grammar is not None
    made = answer(family, vocabulary.sample(grammar, 0), tools=tools)
    assert {call.name for call in made.calls} == {"no"}


def test_a_model_that_knows_no_tools_cannot_be_made_to_call_one() -> None:
    plain = Plain((), thinks=False)
    with pytest.raises(InvalidRequest) as refused:
        plain.grammar(ToolUse(TOOLS, "required"), None, thinking=False)
    assert refused.value.param == "tool_choice"
    vocabulary = Vocabulary(())
    grammar = plain.grammar(ToolUse(TOOLS), Regex("yes"), thinking=False)
    assert grammar is not None
    assert answer(plain, vocabulary.sample(grammar, 0)) == said("yes")

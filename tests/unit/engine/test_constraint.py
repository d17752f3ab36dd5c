"""Grammars as llguidance runs them, over bytes and over a model's tokenizer."""

import json
import random
from typing import Any

import llguidance
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from paceline.contracts.errors import InvalidRequest
from paceline.engine import constraint as constraints
from paceline.engine import vocabulary
from paceline.engine.constraint import GrammarConstraint, Grammars
from paceline.engine.masks import allowed, permits
from paceline.model.tokenizer import Tokenizer

EOS = 0
VOCAB = 300


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(vocabulary.of_bytes(VOCAB, {EOS}))


def regex(pattern: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"start: /{pattern}/"}]})


def schema(value: dict[str, Any]) -> str:
    return json.dumps({"grammars": [{"json_schema": value | {"x-guidance": {"whitespace_flexible": False}}}]})


def ended(constraint: GrammarConstraint) -> bool:
    """Read anew: a type checker believes that properties stay as they were."""
    return constraint.ended


def choices(constraint: GrammarConstraint, vocab: int = VOCAB) -> list[int]:
    mask = np.full(-(-vocab // 32), -1, dtype=np.int32)
    constraint.fill(mask)
    return np.flatnonzero(allowed(mask, vocab)).tolist()


def test_it_follows_a_grammar_to_its_end(grammars: Grammars) -> None:
    found = grammars.constraint(regex("a[bc]+d"), [])
    assert choices(found) == [ord("a")]
    assert not found.take(ord("b"))
    for character in b"abc":
        assert found.take(character)
    assert choices(found) == list(b"bcd")
    assert not ended(found)
    assert found.take(ord("d"))
    assert ended(found)
    assert found.error is None


def test_an_end_token_ends_what_could_go_on(grammars: Grammars) -> None:
    found = grammars.constraint(regex("ab*"), [])
    assert not found.take(EOS)
    assert found.take(ord("a"))
    assert choices(found) == [EOS, ord("b")]
    assert not ended(found)
    assert found.take(EOS)
    assert ended(found)
    found.take_back()
    assert not ended(found)
    assert found.take(ord("b"))


def test_an_end_token_in_the_middle_is_asked_for_and_not_taken(grammars: Grammars) -> None:
    found = grammars.constraint(json.dumps({"grammars": [{"lark_grammar": f'start: "a" <[{EOS}]> "b"'}]}), [])
    assert found.take(ord("a"))
    assert choices(found) == [EOS]
    assert not found.take(EOS)
    assert found.error is None
    assert permits(found, EOS, VOCAB)
    assert not permits(found, ord("b"), VOCAB)


def test_what_is_taken_back_leaves_no_trace(grammars: Grammars) -> None:
    text = b'{"a":[1,22,"x"],"b":null}'
    value = {
        "type": "object",
        "properties": {"a": {"type": "array"}, "b": {"type": "null"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    found = grammars.constraint(schema(value), [])
    for i, byte in enumerate(text):
        fresh = grammars.constraint(schema(value), list(text[:i]))
        assert choices(found) == choices(fresh)
        for wrong in choices(found)[:3]:
            assert found.take(wrong)
            found.take_back()
        assert found.take(byte)
    assert ended(found)


def test_forced_tokens_are_those_without_a_choice(grammars: Grammars) -> None:
    found = grammars.constraint(schema({"enum": ["red one", "red two"]}), [])
    assert bytes(found.forced()) == b'"red '
    assert choices(found) == [ord('"')]
    for byte in b'"red t':
        assert found.take(byte)
    assert bytes(found.forced()) == b'wo"'


def test_what_leaves_no_choice_for_too_long_is_refused(grammars: Grammars) -> None:
    """Masks look ahead to its end, so that 200 kB of it would stop everybody for a tenth of a second at each token."""
    assert len(grammars.constraint(schema({"const": "x" * 510}), []).forced()) == 512
    with pytest.raises(InvalidRequest, match="no choice"):
        grammars.constraint(schema({"const": "x" * 511}), [])
    later = grammars.constraint(schema({"enum": ["a", "b" + "x" * 600]}), [])
    for byte in b'"b':
        assert later.error is None
        assert later.take(byte)
    assert later.forced() == []
    assert later.error is not None
    assert "no choice" in later.error
    assert choices(later) == []


def test_constraints_of_one_grammar_know_nothing_of_each_other(grammars: Grammars) -> None:
    first, second = (grammars.constraint(regex("[ab]{2}"), []) for _ in range(2))
    assert first.take(ord("a"))
    assert first.take(ord("b"))
    assert (first.ended, second.ended) == (True, False)
    assert choices(second) == list(b"ab")


def test_the_last_grammars_are_kept_compiled(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "CACHED", 2)
    compiled: list[str] = []
    matcher = llguidance.LLMatcher

    def spy(tokens: Any, grammar: str, **kwargs: Any) -> Any:
        compiled.append(grammar)
        return matcher(tokens, grammar, **kwargs)

    monkeypatch.setattr("paceline.engine.constraint.LLMatcher", spy)
    a, b, c = map(regex, "abc")
    for grammar in (a, b, a, c, a, b):
        grammars.constraint(grammar, [])
    assert compiled == [a, b, c, b]


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (schema({"$ref": "#"}), "too complex: NoExtensionBias$"),
        ('{"grammars":[]}', "empty"),
        ("{}", "missing field"),
        (schema({"type": "foo"}), "foo"),
        (json.dumps({"grammars": [{"lark_grammar": "start: ("}]}), "Expected"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused(grammars: Grammars, grammar: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as error:
        grammars.constraint(grammar, [])
    assert error.value.param == "grammar"


def test_output_that_the_grammar_forbids_is_refused(grammars: Grammars) -> None:
    assert choices(grammars.constraint(regex("a{200}"), [ord("a")] * 199)) == [ord("a")]
    with pytest.raises(InvalidRequest, match="generated before"):
        grammars.constraint(regex("a{200}"), [ord("a")] * 199 + [ord("b")])


def test_an_automaton_that_grows_too_large_is_an_error_of_the_request(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "_STATES", 20)
    small = Grammars(vocabulary.of_bytes(VOCAB, {EOS}))
    found = small.constraint(regex("(a|b)*a(a|b){12}"), [])
    chance = random.Random(0)
    for _ in range(200):
        if not choices(found) or not found.take(chance.choice(b"ab")):
            break
    assert found.error is not None
    assert not ended(found)
    assert choices(found) == []
    assert choices(grammars.constraint(regex("(a|b)*a(a|b){12}"), [])) == list(b"ab")


def test_a_models_own_tokens_are_used() -> None:
    """Longer tokens, special ones that are in no text, and rows of logits that are wider than the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {character: i for i, character in enumerate(alphabet)}
    merges = [("r", "e"), ("re", "d")]
    ids |= {"re": len(ids), "red": len(ids) + 1}
    built = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<end>", "<call>"])
    tokenizer = Tokenizer(built, frozenset({258}))
    grammars = Grammars(vocabulary.of_tokenizer(tokenizer, 264, {258}))
    found = grammars.constraint(regex("red*"), [])
    assert choices(found, 264) == sorted([ids["r"], ids["re"], ids["red"]])
    assert found.take(ids["red"])
    assert choices(found, 264) == sorted([ids["d"], 258])
    # A special token is no text, even where any text may come.
    anything = grammars.constraint(regex("(.|\\n)*"), [])
    assert 258 in choices(anything, 264)
    assert 259 not in choices(anything, 264)
    with pytest.raises(InvalidRequest, match="260 tokens, and the model 259"):
        vocabulary.of_tokenizer(tokenizer, 259, {258})

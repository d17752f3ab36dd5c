"""A prompt that grew has the tokens that it would have alone, and costs what is new."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from paceline.gateway import growing
from paceline.gateway.growing import Growing
from paceline.model.bytelevel import ALPHABET
from paceline.model.tokenizer import Tokenizer as ModelTokenizer


class Counting(ModelTokenizer):
    """Counts the characters that it is given."""

    characters = 0

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        self.characters += sum(map(len, texts))
        return super().encode_all(texts)


def tokenizer(*added: AddedToken) -> Counting:
    vocab = {character: i for i, character in enumerate(ALPHABET)}
    merges = []
    for pair in ("ab", "abc", "cd", "Ġa"):
        vocab[pair] = len(vocab)
        merges.append((pair[:-1], pair[-1]))
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken("<|s|>", special=True, normalized=False), *added])
    built.add_tokens([AddedToken("<call>", special=False, normalized=False)])
    return Counting(built, frozenset())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_SMALL", 1)
    monkeypatch.setattr(growing, "_HEAD", 2)
    monkeypatch.setattr(growing, "_ALIKE", 3)


_pieces = st.sampled_from(["<|s|>", "<call>", "<|s", "ab", "abc", "c", "d", " a", "e\u0301", "x", "|>", "\n"])


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 12), st.lists(_pieces, max_size=8)), min_size=1, max_size=8))
def test_tokens_are_those_of_the_text_alone(turns: list[tuple[int, list[str]]]) -> None:
    tokens = tokenizer()
    prompts = Growing(tokens)
    said: list[str] = []
    for kept, more in turns:
        said = said[:kept] + more
        text = "".join(said)
        assert prompts.encode(text) == tokens.encode(text)


def test_only_what_is_new_is_tokenized() -> None:
    tokens = tokenizer()
    prompts = Growing(tokens)
    text = "ab<|s|>" * 1000
    prompts.encode(text + "cd")
    tokens.characters = 0
    prompts.encode(text + "abc<|s|>d")
    assert tokens.characters == len("abc<|s|>d")


def test_conversations_that_begin_alike_do_not_displace_each_other() -> None:
    tokens = tokenizer()
    prompts = Growing(tokens)
    sessions = [f"ab<|s|>{i}<|s|>" for i in range(3)]
    for turn in range(3):
        for i, session in enumerate(sessions):
            tokens.characters = 0
            sessions[i] = session + f"{turn}<|s|>"
            prompts.encode(sessions[i])
            assert turn == 0 or tokens.characters == len(f"{turn}<|s|>")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_MAX_CHARACTERS", 100)
    prompts = Growing(tokenizer())
    for i in range(50):
        prompts.encode(f"{i:02d}<|s|>" * 5)
    assert prompts._characters <= 100
    assert sum(map(len, prompts._alike.values())) == len(prompts._known)


@pytest.mark.parametrize(
    "other",
    [
        AddedToken("<|t|>", special=True, normalized=False, rstrip=True),
        AddedToken("<|s|>x", special=True, normalized=False),
    ],
)
def test_without_a_safe_place_to_cut_everything_is_tokenized(other: AddedToken) -> None:
    tokens = tokenizer(other)
    assert tokens.cuts == frozenset()
    assert Growing(tokens).encode("ab<|s|>x<|t|> c") == tokens.encode("ab<|s|>x<|t|> c")

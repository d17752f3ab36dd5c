"""Tokens as the libraries of the field make them, from either kind of file, and bytes that add up."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Reference

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles
from paceline.model.pull import ensure_default
from paceline.model.tokenizer import Tokenizer
from tests.unit.model.files import SPECIAL, train_tokenizer, write_gguf

library: Any = transformers  # typed only in part

BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
TEXTS = [
    "",
    "The quick brown fox.",
    "  it's 12:34,\n\n\n\tdon't   WE'LL ",
    "Größe naïveté e\u0301 日本語 🙂👩‍👧 ½ ١٢٣ \r\n",
    "<|im_start|>user\n<|im_end|><|im_start|",
]


def bounded(normalizer: Any) -> Tokenizer:
    """A tokenizer with that normalizer."""
    reference = train_tokenizer(BYTE_LEVEL)
    if normalizer is not None:
        reference.normalizer = normalizer
    return Tokenizer(reference, frozenset())


LEAST = {True: bounded(None), False: bounded(normalizers.NFC())}


def save_hf(directory: Path, tokenizer: Reference) -> ModelFiles:
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    return ModelFiles("m", "hf", directory)


def save_gguf(path: Path, tokenizer: Reference, **changes: Any) -> ModelFiles:
    vocab = tokenizer.get_vocab()
    model = json.loads(tokenizer.to_str())["model"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocab) - len(SPECIAL)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
    } | changes
    return ModelFiles("m", "gguf", write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, {}))


@pytest.fixture(scope="module")
def reference() -> Reference:
    return train_tokenizer(BYTE_LEVEL)


@pytest.fixture(scope="module")
def tokenizer(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(save_hf(tmp_path_factory.mktemp("hf"), reference))


def test_agrees_with_transformers(tokenizer: Tokenizer, reference: Reference) -> None:
    other = library.PreTrainedTokenizerFast(tokenizer_object=reference)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == other.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special=False) == other.decode(
            ids, clean_up_tokenization_spaces=False
        )


def test_properties(tokenizer: Tokenizer, reference: Reference) -> None:
    assert tokenizer.vocab == reference.get_vocab_size()
    assert tokenizer.eos_ids == {2}


@given(text=st.text())
def test_round_trip(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert b"".join(tokenizer.token_bytes(i) for i in tokenizer.encode("a" + text)).startswith(b"a")


@given(ids=st.lists(st.integers(0, 399)))
def test_any_tokens_decode_as_the_library_does(
    ids: list[int], tokenizer: Tokenizer, reference: Reference
) -> None:
    """Broken UTF-8 included; the text is that of the joined bytes."""
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(ids) == b"".join(map(tokenizer.token_bytes, ids)).decode(errors="replace")


def test_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.decode(ids) == "hi"


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([10**6, -1, 2**40]) == ""
    assert tokenizer.token_bytes(tokenizer.vocab) == b""


def test_lone_surrogates_are_the_callers_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tokenizer.encode("a\ud800b")


def test_text_is_never_cut_or_padded(reference: Reference, tmp_path: Path) -> None:
    """Whatever tokenizer.json says for batches of training text."""
    other = Reference.from_str(reference.to_str())
    other.enable_truncation(4)
    other.enable_padding(length=50)
    text = "The quick brown fox."
    expected = reference.encode(text, add_special_tokens=False).ids
    assert len(expected) > 4
    assert Tokenizer.load(save_hf(tmp_path, other)).encode(text) == expected


SPLITS: dict[str, list[pre_tokenizers.PreTokenizer]] = {
    "gpt-2": [BYTE_LEVEL],
    "default": [BYTE_LEVEL],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_gguf_is_the_tokenizer_it_was_made_from(pre: str, tmp_path: Path) -> None:
    reference = train_tokenizer(*SPLITS[pre])
    found = Tokenizer.load(save_gguf(tmp_path / "m.gguf", reference, **{"tokenizer.ggml.pre": pre}))
    for text in TEXTS:
        assert found.encode(text) == reference.encode(text, add_special_tokens=False).ids
        assert found.decode(found.encode(text), skip_special=False) == text
    assert found.eos_ids == {2}


def test_gguf_qwen2_is_transformers_qwen2(tmp_path: Path) -> None:
    """Its splitting and its normal form: a letter and its accent become one."""
    trained = train_tokenizer(BYTE_LEVEL)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    other = library.Qwen2Tokenizer(vocab=model["vocab"], merges=merges)
    found = Tokenizer.load(save_gguf(tmp_path / "m.gguf", trained, **{"tokenizer.ggml.pre": "qwen2"}))
    for text in TEXTS[:-1]:
        assert found.encode(text) == other.encode(text, add_special_tokens=False)
    assert found.encode("e\u0301") == found.encode("\u00e9")


def test_gguf_llama3_takes_known_words_whole(tmp_path: Path) -> None:
    """Numbers in threes, and a word of the vocabulary is one token although no merges lead to it."""
    trained = train_tokenizer(BYTE_LEVEL)
    vocab = trained.get_vocab()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "zqzq"]
    changes = {
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
    }
    found = Tokenizer.load(save_gguf(tmp_path / "m.gguf", trained, **changes))
    assert found.encode("zqzq") == [len(tokens) - 1]
    # As llama.cpp writes down the rule of this name.
    rule = (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    other = Reference.from_str(trained.to_str())
    other.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for text in TEXTS:
        assert found.encode(text) == other.encode(text, add_special_tokens=False).ids


def test_gguf_tokens_that_are_added_but_not_special(tmp_path: Path, reference: Reference) -> None:
    """Such as <think>: found in text as one token, and part of the answer's text."""
    types = [3, 3, 4] + [1] * (reference.get_vocab_size() - 3)
    found = Tokenizer.load(save_gguf(tmp_path / "m.gguf", reference, **{"tokenizer.ggml.token_type": types}))
    assert found.encode("<|im_end|>") == [2]
    assert found.token_bytes(2) == b"<|im_end|>"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer 'llama' is not supported"),
        ({"tokenizer.ggml.pre": "deepseek-v3"}, "pre-tokenizer 'deepseek-v3' is none of"),
        ({"tokenizer.ggml.merges": ["a"]}, "a merge is not a pair"),
        ({"tokenizer.ggml.merges": ["nope nope"]}, "merges do not fit"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "repeats a token"),
        ({"tokenizer.ggml.merges": None}, "merges is missing"),
    ],
)
def test_gguf_refusals(change: dict[str, Any], reason: str, tmp_path: Path, reference: Reference) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Tokenizer.load(save_gguf(tmp_path / "m.gguf", reference, **change))
    assert reason in str(refused.value)


def test_hf_refusals(tmp_path: Path) -> None:
    files = save_hf(tmp_path, Reference(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(InvalidRequest, match="not byte-level"):
        Tokenizer.load(files)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="is no tokenizer"):
        Tokenizer.load(files)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InvalidRequest, match="is missing"):
        Tokenizer.load(files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("It's 2024, isn't it?", [1589, 506, 216, 34, 32, 34, 36, 28, 3247, 982, 357, 47]),
        ("  12345.67\n\n\ttabs ", [256, 33, 34, 35, 36, 37, 30, 38, 39, 1116, 197, 100, 7366, 216]),
        # One by one in every script: converters that keep only GPT-2's rule join these.
        ("١٢٣٤", [164, 111, 164, 112, 164, 113, 164, 114]),
        ("½ ² Ⅷ 12ab34", [16738, 216, 19133, 216, 173, 223, 117, 216, 33, 34, 369, 35, 36]),
        ("naïve 日本語 🙂", [3546, 46494, 17097, 241, 115, 40993, 179, 120, 248, 47526]),
        ("<|im_start|>user\nHello!<|im_end|>\n", [1, 4093, 198, 19556, 17, 2, 198]),
    ],
)
def test_golden_ids_of_smollm2(text: str, ids: list[int]) -> None:
    """Checked against a tokenizer written from llama.cpp's rules in another language of regular expressions."""
    tokenizer = Tokenizer.load(ModelFiles("m", "gguf", ensure_default(lambda done, total: None)))
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()])
@given(
    text=st.text() | st.lists(st.sampled_from([*SPECIAL, "the ", "\u03b1\u0313\u0300\u0345"])).map("".join)
)
def test_a_text_has_no_fewer_tokens_than_its_length_tells(normalizer: Any, text: str) -> None:
    tokenizer = LEAST[normalizer is None]
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))


def test_what_cannot_be_told_from_the_length_is_not_told() -> None:
    assert LEAST[True].least_tokens("x" * 100_000) > 1000
    assert LEAST[False].least_tokens("x" * 100_000) > 250
    assert bounded(normalizers.NFKC()).least_tokens("x" * 100_000) == 0

"""Ranks and Kimi's way of splitting text, against the library that defines the ranks."""

import itertools
import json
import random
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer
from tests.unit.model.files import SPECIAL, train_tokenizer

KIMI = Path(__file__).parents[3] / "../shared/data/tokenizers/kimi-k2-instruct"

# Kimi's splitting spelt without the intersection of classes: letters and marks that are not Han.
CAPITAL = r"(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
SMALL = r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])"
PIECES = (
    r"\p{Han}{1,}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}*{SMALL}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}+{SMALL}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}\p{N}?\p{N}?",
    r"[ ]?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)
ADDED = {"[BOS]": True, "[EOS]": True, "<|im_end|>": True, "<|im_user|>": True, "<|tool_call_begin|>": False}
TEXTS = [
    "",
    Path(__file__).read_text(encoding="utf-8"),
    "The quick brown Fox DOESN'T jump; we'Ve 1234567 reasons.\r\n\r\n\t\tdef camelCaseHTTPServer():  \n",
    "中文English混合\uff0c\uff12\uff10\uff12\uff14年\u3007々ア漢カナ漢字'S ⺀\u3021",
    "x'Sx",
    # A mark can be the sign before a word, and a part of it.
    "\u0301A \u0301Ab e\u0301E' \u017f'\u017f '\u017f",
    "ǅungla ʰaʰ ß ᏣᎳᎩ ะไทย हिन्दी العربية ١٢٣٤ ½ Ⅷ",
    "zqzq azqzq zqzqZQ",
    " " * 700 + "=" * 300 + "\n" * 99 + " \u3000\u00a0\n \u2028x",
    "🙂👩‍👧\ufe0f 日本語のテスト \U000323af\U0002ebf0",
]
# Characters that are near the borders of the classes, for texts which cross them often.
BORDERS = st.text(
    alphabet="aAzsS'\u2019tlLvedǅʰ\u017f\u0301\u0308\u30fc々\u3007漢字ア 1٣½_-=/.\n\r\t \u3000🙂\u200d",
    max_size=40,
)
WORDS = st.lists(st.sampled_from([*ADDED, "<|reserved_token_9|>", "the ", "zqzq", "<|im_"])).map("".join)


@dataclass(frozen=True)
class Pair:
    """The same tokens twice, with the text of those behind the ranks."""

    found: Tokenizer
    reference: tiktoken.Encoding

    def check(self, text: str) -> None:
        ids = self.found.encode(text)
        assert ids == self.reference.encode(text, allowed_special="all")
        assert self.found.decode(ids, skip_special=False) == text


def save(
    directory: Path, tokens: Sequence[bytes], added: Iterable[tuple[str, bool]] = (), **changes: Any
) -> ModelFiles:
    """A directory as Kimi K2.5's, with eight ids behind the ranks; `changes` are to tokenizer_config.json."""
    base = len(tokens)
    lines = [f"{b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("\n".join([*lines, ""]))
    named = {str(base + i): {"content": c, "special": s} for i, (c, s) in enumerate(added)}
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": named} | changes
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    text = {"model_type": "kimi_k2", "vocab_size": base + 8, "eos_token_id": base + 1}
    (directory / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": base + 2}))
    return ModelFiles("kimi", "hf", directory)


def refer(tokens: Sequence[bytes], special: Iterable[str]) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "kimi",
        pat_str="|".join(PIECES),
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={text: len(tokens) + i for i, text in enumerate(special)},
    )


def trained() -> list[bytes]:
    """A vocabulary as training makes it, a token that no pair makes, and some that a wrong split finds or misses."""
    vocab = train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False)).get_vocab()
    characters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    spelt = {character: byte for byte, character in characters.items()}
    ranked = sorted(vocab, key=vocab.__getitem__)[len(SPECIAL) :]
    tokens = [bytes(spelt[c] for c in token) for token in ranked]
    across = "zqzq \u0301 \u0301A 'S x'S 234 1234 \u6f22 \u30a2\u6f22 \u6f22\u5b57"
    return tokens + [text.encode() for text in across.split()]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    tokens = trained()
    files = save(tmp_path_factory.mktemp("tiny"), tokens, ADDED.items())
    reserved = [f"<|reserved_token_{len(tokens) + i}|>" for i in range(len(ADDED), 8)]
    return Pair(Tokenizer.load(files), refer(tokens, [*ADDED, *reserved]))


@pytest.fixture(scope="module")
def kimi_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    if not KIMI.is_dir():
        pytest.skip(f"the tokenizer of Kimi K2 is not at {KIMI.resolve()}")
    directory = tmp_path_factory.mktemp("kimi")
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copyfile(KIMI / name, directory / name)
    (directory / "config.json").write_text(json.dumps({"vocab_size": 163840, "eos_token_id": 163586}))
    return ModelFiles("kimi", "hf", directory)


@pytest.fixture(scope="module")
def kimi(kimi_files: ModelFiles) -> Pair:
    named = json.loads((kimi_files.path / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    special = [
        named[str(i)]["content"] if str(i) in named else f"<|reserved_token_{i}|>"
        for i in range(163584, 163840)
    ]
    lines = (kimi_files.path / "tiktoken.model").read_text().split()
    tokens = [b64decode(token) for token in lines[::2]]
    return Pair(Tokenizer.load(kimi_files), refer(tokens, special))


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_few_tokens(text: str, tiny: Pair) -> None:
    tiny.check(text)


@given(text=st.text() | BORDERS | WORDS)
def test_any_text_in_few_tokens(text: str, tiny: Pair) -> None:
    tiny.check(text)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_alone_say_what_is_joined(seed: int, tmp_path: Path) -> None:
    """Tokens in an order that no training leaves, some of them with several ways to make them."""
    joined = ["".join(word) for n in (2, 3) for word in itertools.product("abc", repeat=n)]
    tokens = [bytes([b]) for b in range(256)]
    tokens += [word.encode() for word in random.Random(seed).sample(joined, 22)]
    found, reference = Tokenizer.load(save(tmp_path, tokens)), refer(tokens, [])
    for word in (letters for n in range(1, 8) for letters in itertools.product("abc", repeat=n)):
        text = "".join(word)
        assert found.encode(text) == reference.encode(text)


def test_ids_behind_the_ranks(tiny: Pair) -> None:
    base = len(trained())
    found = tiny.found
    assert (found.vocab, sorted(found.eos_ids)) == (base + 8, [base + 1, base + 2])
    assert [found.encode(text) for text in ADDED] == [[base + i] for i in range(len(ADDED))]
    ids = found.encode(f"<|im_user|>hi<|tool_call_begin|><|im_end|><|reserved_token_{base + 7}|>")
    assert (ids[0], ids[-2:]) == (base + 3, [base + 2, base + 7])
    assert found.decode(ids) == "hi<|tool_call_begin|>"
    assert found.token_bytes(base + 8) == b""


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    files = save(tmp_path, trained())
    other = train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    other.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(files).vocab == other.get_vocab_size()


BYTES = [bytes([b]) for b in range(256)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("!!!! 256\n", "tiktoken.model, line 257: expected a token in base64"),
        ("YWI 256\n", "tiktoken.model, line 257: expected a token in base64"),
        ("YWI=\n", "tiktoken.model, line 257: expected a token in base64"),
        ("YWI= one\n", "tiktoken.model, line 257: expected a token in base64"),
        ("YWI= 255\n", "tiktoken.model: rank 256 is missing, though there are 257 lines"),
        ("YWI= 257\n", "tiktoken.model: rank 256 is missing, though there are 257 lines"),
        ("YQ== 256\n", "tiktoken.model: 1 tokens have two ranks"),
        (
            "".join(f"YWI{c}YWJj {256 + i}\n" for i, c in enumerate("ABCDEFGHI")),
            "265 tokens for a vocabulary of 264",
        ),
    ],
)
def test_damaged_ranks(lines: str, reason: str, tmp_path: Path) -> None:
    files = save(tmp_path, BYTES)
    with (tmp_path / "tiktoken.model").open("a") as file:
        file.write(lines)
    with pytest.raises(InvalidRequest) as refused:
        Tokenizer.load(files)
    assert str(refused.value).startswith(str(tmp_path))
    assert reason in str(refused.value)


def test_a_byte_without_a_token(tmp_path: Path) -> None:
    for tokens in ([], BYTES[:-1]):
        with pytest.raises(InvalidRequest, match=r"tiktoken\.model: not every byte is a token"):
            Tokenizer.load(save(tmp_path, tokens))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer_class": "QWenTokenizer"}, "tokenizer_class 'QWenTokenizer' is not TikTokenTokenizer"),
        ({"tokenizer_class": None}, "tokenizer_class is missing"),
        ({"added_tokens_decoder": {"256": {}}}, "content is missing"),
        ({"added_tokens_decoder": {"257": {"content": ""}}}, "added token 257, '', is empty"),
        ({"added_tokens_decoder": {"257": {"content": "a"}}}, "added token 257, 'a', is"),
        (
            {"added_tokens_decoder": {i: {"content": "<x>"} for i in ("256", "259")}},
            "added token 259, '<x>', is",
        ),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Tokenizer.load(save(tmp_path, BYTES, **changes))
    assert str(refused.value).startswith(f"{tmp_path / 'tokenizer_config.json'}: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", TEXTS)
def test_text_in_kimis_tokens(text: str, kimi: Pair) -> None:
    kimi.check(text)


@given(text=st.text() | BORDERS)
def test_any_text_in_kimis_tokens(text: str, kimi: Pair) -> None:
    kimi.check(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello, world!", [19180, 11, 2695, 0]),
        ("1234567890", [6694, 12972, 16242, 15]),
        ("中文English混合", [16717, 44372, 13935]),
    ],
)
def test_golden_ids_of_kimi_k2(text: str, ids: list[int], kimi: Pair) -> None:
    """As other programs for this vocabulary give them."""
    assert kimi.found.encode(text) == ids


def test_a_conversation_with_kimi(kimi_files: ModelFiles, kimi: Pair) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 <|im_end|"}]
    prompt = ChatTemplate.load(kimi_files).render(messages)
    assert prompt == (
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
        "<|im_user|>user<|im_middle|>你好 <|im_end|<|im_end|><|im_assistant|>assistant<|im_middle|>"
    )
    kimi.check(prompt)
    ids = kimi.found.encode(prompt)
    assert [i for i in ids if i >= 163584] == [
        *(163594, 163601, 163586),
        *(163587, 163601, 163586),
        *(163588, 163601),
    ]
    assert (kimi.found.vocab, list(kimi.found.eos_ids)) == (163840, [163586])
    assert kimi.found.decode(ids) == "systemBe brief.user你好 <|im_end|assistant"

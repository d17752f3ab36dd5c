"""Kimi's tokenizer: a file of tiktoken ranks, and a way of splitting text that stands in the code beside it.

`tiktoken.model` has one line for each token: its bytes in base64, and its rank, which is its id. Of the pairs of
neighbours in a piece of text, tiktoken always joins the one whose bytes have the lowest rank, the leftmost of several
(https://github.com/openai/tiktoken). `tokenizers` does the same when every way to make a token of two others is a merge
as early as the token's rank.
"""

from binascii import a2b_base64
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

from paceline.contracts.errors import InvalidRequest
from paceline.model import config_hf
from paceline.model.bytelevel import AFTER_WORDS, ALPHABET, split_by
from paceline.model.fields import Fields, read_json

FILE = "tiktoken.model"

# The class whose code has the pattern below; other models have such files too, and split text in other ways.
_CLASS = "TikTokenTokenizer"
# Ids behind the ranks that Kimi names, those without a name in tokenizer_config.json included.
_RESERVED = 256

# Han stands apart. Elsewhere a word is capitals and small letters in this order, either of which may be absent; letters
# without case and marks are both.
_CAPITAL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'(?:[dmst]|ll|re|ve))?"
_PATTERN = "|".join(
    (
        r"\p{Han}+",
        f"{_BEFORE}{_CAPITAL}*{_SMALL}+{_CONTRACTION}",
        # Not one alternative with the last: small letters without what is before them win over capitals with it.
        f"{_BEFORE}{_CAPITAL}+{_SMALL}*{_CONTRACTION}",
        AFTER_WORDS,
    )
)


def read(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory, with the ids of its `tiktoken.model`.

    Raises `InvalidRequest` for a damaged file, and for a model that is not known to split text as Kimi does.
    """
    config = read_json(directory / "tokenizer_config.json")
    if (kind := config.text("tokenizer_class")) != _CLASS:
        raise config.refuse(f"tokenizer_class {kind!r} is not {_CLASS}, so how it splits text is not known")
    path = directory / FILE
    tokens = _read_ranks(path)
    vocab = config_hf.text_fields(read_json(directory / "config.json")).count("vocab_size")
    if len(tokens) > vocab:
        raise InvalidRequest(f"{path}: there are {len(tokens)} tokens for a vocabulary of {vocab}")
    tokenizer = Tokenizer(_merging(tokens, path))
    tokenizer.pre_tokenizer = split_by(_PATTERN)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, config, range(len(tokens), min(len(tokens) + _RESERVED, vocab)))
    return tokenizer


def _read_ranks(path: Path) -> list[str]:
    """The tokens in the order of their ranks, spelt in the byte-level alphabet."""
    ranks: dict[int, str] = {}
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            token, rank = line.split()
            ranks[int(rank)] = a2b_base64(token, strict_mode=True).decode("latin-1").translate(ALPHABET)
        except ValueError as e:
            raise InvalidRequest(f"{path}, line {number}: expected a token in base64 and its rank") from e
    if absent := sorted(set(range(len(lines))).difference(ranks)):
        raise InvalidRequest(f"{path}: rank {absent[0]} is missing, though there are {len(lines)} lines")
    return [ranks[rank] for rank in range(len(lines))]


def _merging(tokens: list[str], path: Path) -> models.BPE:
    vocab = {token: rank for rank, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise InvalidRequest(f"{path}: {len(tokens) - len(vocab)} tokens have two ranks")
    if not vocab.keys() >= set(ALPHABET):
        raise InvalidRequest(f"{path}: not every byte is a token, so not every text could be written in them")
    merges = [
        (left, right)
        for token in tokens
        for i in range(1, len(token))
        if (left := token[:i]) in vocab and (right := token[i:]) in vocab
    ]
    # A piece that is a token stays whole, though joining pairs may not lead to it.
    return models.BPE(vocab, merges, ignore_merges=True)


def _add_tokens(tokenizer: Tokenizer, config: Fields, ids: range) -> None:
    """Give names to `ids`: those in the configuration, and Kimi's own to the rest."""
    named = config.section("added_tokens_decoder")
    added = {i: _added(named.section(key)) if (key := str(i)) in named else _reserved(i) for i in ids}
    tokenizer.add_tokens(list(added.values()))
    found = tokenizer.get_added_tokens_decoder()
    for i, token in added.items():
        if i not in found or found[i].content != token.content:
            raise config.refuse(f"added token {i}, {token.content!r}, is empty or another token's text")


def _added(fields: Fields) -> AddedToken:
    return AddedToken(fields.text("content"), special=fields.flag("special", False), normalized=False)


def _reserved(token: int) -> AddedToken:
    return AddedToken(f"<|reserved_token_{token}|>", special=True, normalized=False)

"""The tokens of a model, as grammars see them: each a run of bytes, and some that end an answer."""

from collections.abc import Collection
from dataclasses import dataclass

from llguidance import LLTokenizer

from paceline.contracts.errors import InvalidRequest
from paceline.model.tokenizer import Tokenizer


def of_tokenizer(tokenizer: Tokenizer, vocab: int, eos_ids: Collection[int]) -> LLTokenizer:
    """Of a model whose rows of logits are `vocab` wide. Takes half a second, in which no other thread runs Python.

    Raises `InvalidRequest` when the tokenizer has more tokens than the model.
    """
    if tokenizer.vocab > vocab:
        raise InvalidRequest(f"the tokenizer has {tokenizer.vocab} tokens, and the model {vocab}")
    return LLTokenizer(tokenizer.to_json(), n_vocab=vocab, eos_token=sorted(eos_ids) or None)


def of_bytes(vocab: int, eos_ids: Collection[int]) -> LLTokenizer:
    """Of an engine without a model: token i is byte i, and those from 256 on are in no text."""
    return LLTokenizer(_Bytes(vocab, eos_ids), n_vocab=vocab, eos_token=sorted(eos_ids))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Bytes:
    """What `LLTokenizer` asks of a tokenizer that is no tokenizer.json."""

    vocab: int
    eos_ids: Collection[int]
    is_tokenizer_wrapper = True
    bos_token_id = None

    @property
    def eos_token_id(self) -> int:
        return min(self.eos_ids)

    @property
    def special_token_ids(self) -> list[int]:
        return [i for i in range(self.vocab) if i >= 256 or i in self.eos_ids]

    @property
    def tokens(self) -> list[bytes]:
        special = set(self.special_token_ids)
        return [f"<{i}>".encode() if i in special else bytes((i,)) for i in range(self.vocab)]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

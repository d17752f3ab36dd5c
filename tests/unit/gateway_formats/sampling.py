"""A model that says anything that a grammar allows."""

# ruff: noqa: RUF001 - the bars of DeepSeek's markers are not those of ASCII

import random
from collections.abc import Collection, Sequence

import llguidance

from tests.unit.gateway_formats.speech import Piece, Special

# Ends of free text, which single random bytes would hardly ever find.
WORDS = (
    "</think>",
    "\n</parameter>\n",
    "</arg_value>",
    "</arg_value>\n",
    "</｜DSML｜parameter>\n",
    "<|end|>",
)
_ENDS = tuple(b'"]}')


class Vocabulary:
    """Single bytes, a few words, and special tokens, as llguidance wants to see them."""

    bos_token_id = None

    def __init__(self, special: Collection[str]) -> None:
        words = [word.encode() for word in WORDS if not any(name in word for name in special)]
        names = sorted(special)
        self.tokens = (
            [bytes([byte]) for byte in range(256)] + words + [name.encode() for name in names] + [b"<eos>"]
        )
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = list(range(256 + len(words), len(self.tokens)))
        self._special = dict(zip(names, self.special_token_ids, strict=False))
        self.llguidance = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

    def encode(self, pieces: Sequence[Piece]) -> list[int]:
        """Tokens of text and special tokens."""
        ids: list[int] = []
        for piece in pieces:
            text = piece.token if isinstance(piece, Special) else piece
            ids += [self._special[text]] if text in self._special else list(text.encode())
        return ids

    def decode(self, ids: Sequence[int]) -> list[Piece]:
        """Text and special tokens."""
        pieces: list[Piece] = []
        held = b""
        for token in ids:
            if token in self.special_token_ids:
                pieces += [held.decode(), Special(self.tokens[token].decode())]
                held = b""
            else:
                held += self.tokens[token]
        return [*pieces, held.decode()]

    def sample(self, grammar: str, seed: int, begin: Sequence[Piece] = ()) -> list[Piece]:
        """A random sentence of the grammar that begins with `begin`."""
        chance = random.Random(seed)
        matcher = llguidance.LLMatcher(self.llguidance, grammar)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.encode(begin)
        assert matcher.consume_tokens(ids), (begin, matcher.get_error())
        for step in range(2000):
            bias = matcher.compute_logit_bias()
            allowed = [token for token, value in enumerate(bias) if value]
            assert allowed, self.decode(ids)
            if self.eos_token_id in allowed:
                if step > 100 or len(allowed) == 1 or chance.random() < 0.1:
                    return self.decode(ids)
                allowed.remove(self.eos_token_id)
            ends = [token for token in allowed if token >= 256 or token in _ENDS]
            token = chance.choice(ends if ends and chance.random() < 0.15 + step / 200 else allowed)
            assert matcher.consume_token(token)
            ids.append(token)
        raise AssertionError(f"no end: {self.decode(ids)}")

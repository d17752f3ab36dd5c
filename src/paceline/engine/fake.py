"""An engine without a model: exact, instant or as slow as asked, and sensitive to every KV byte.

The KV of one position spells its token id and its position. What follows a context is a function of a hash over all
of the context's KV bytes as they lie in the pages, so that one wrong, missing or displaced byte changes the answer,
while batching, chunking, handoff, speculation and preemption do not. Tests and load tests run on it.
"""

import hashlib
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.interface import Pages, Progress
from paceline.engine.layout import PageGroup, PageLayout, Plane
from paceline.engine.step import Float32, Step
from paceline.model.config import ModelConfig

UInt64 = npt.NDArray[np.uint64]

_DIM = 8
_WORDS = 2 * _DIM * 4 // 8
# Odd, so that no bit of a word is lost in the product.
_MULTIPLIERS = np.array([0x9E3779B97F4A7C15 * (2 * i + 1) % 2**64 for i in range(_WORDS)], dtype=np.uint64)
_INDEX = np.uint64(0xD1342543DE82EF95)
# Logits of the four likeliest tokens; others have 0, the end tokens -100. Close enough that sampling has a choice.
_PEAKS = np.array([12.0, 11.0, 10.5, 10.0], dtype=np.float32)


class FakeEngine:
    """Implements `Engine`. One step takes `base_s + token_s * rows` seconds or as long as the arithmetic, if longer."""

    name = "fake"
    layout = PageLayout(
        (PageGroup((Plane(0, "key", 1, _DIM, "float32"), Plane(0, "value", 1, _DIM, "float32"))),)
    )

    def __init__(
        self,
        config: ModelConfig | None = None,
        *,
        vocab: int = 512,
        context: int = 8192,
        base_s: float = 0.0,
        token_s: float = 0.0,
    ) -> None:
        """With a `config` the vocabulary, context and end tokens are the model's, so that its tokenizer fits."""
        self.vocab = config.vocab if config else vocab
        self.context = config.context if config else context
        self.eos_token_ids = config.eos_ids if config else frozenset({0})
        self.fingerprint = hashlib.sha256(f"paceline/fake/1 {self.vocab}".encode()).digest()
        self._base_s = base_s
        self._token_s = token_s
        self._kv: Float32 | None = None

    def load(self, progress: Progress) -> None:
        progress(1, 1)

    def bind(self, pages: Pages) -> None:
        self._kv = pages.view(np.float32).reshape(len(pages), 2, PAGE_TOKENS, _DIM)

    def execute(self, step: Step) -> Float32:
        if self._kv is None:
            raise RuntimeError("execute before bind")
        done = time.monotonic() + self._base_s + self._token_s * len(step.tokens)
        _move(self._kv, step.moves[0])
        page, offset = np.divmod(step.slots[0], PAGE_TOKENS)
        self._kv[page, :, offset] = kv_of(step.tokens, step.positions)
        states = np.empty(len(step.tokens), dtype=np.uint64)
        for s in range(step.sequences):
            _run_sequence(self._kv, step, s, states)
        logits = _logits(states[step.logit_rows], self.vocab, self.eos_token_ids)
        time.sleep(max(0.0, done - time.monotonic()))
        return logits

    def close(self) -> None:
        self._kv = None

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that greedy generation must give after `prompt`, computed without any page."""
        tokens = list(prompt)
        for _ in range(count):
            positions = np.arange(len(tokens))
            terms = _terms(kv_of(np.array(tokens), positions), positions)
            state = np.add.reduce(terms, keepdims=True)
            tokens.append(int(_logits(state, self.vocab, self.eos_token_ids)[0].argmax()))
        return tokens[len(prompt) :]


def kv_of(tokens: npt.NDArray[np.integer], positions: npt.NDArray[np.integer]) -> Float32:
    """KV [n, K|V, dim]: K counts up in eighths from the token id, V from the position."""
    steps = np.arange(_DIM, dtype=np.float32) / np.float32(_DIM)
    kv: Float32 = np.stack([tokens, positions], axis=1).astype(np.float32)[:, :, None] + steps
    return kv


def _move(kv: Float32, moves: npt.NDArray[np.int64]) -> None:
    (from_page, to_page), (from_offset, to_offset) = (m.T for m in np.divmod(moves, PAGE_TOKENS))
    kv[to_page, :, to_offset] = kv[from_page, :, from_offset]


def _run_sequence(pool: Float32, step: Step, s: int, states: UInt64) -> None:
    """Fill `states` [T] for the rows of sequence s: the hash over all that each row attends to."""
    first, last = int(step.query_starts[s]), int(step.query_starts[s + 1])
    drafts = int(np.count_nonzero(step.parents[first:last] >= 0))
    plain = last - drafts
    context = int(step.contexts[s]) - drafts
    pages = step.page_table[0, s, : -(-context // PAGE_TOKENS)]
    kv = pool[pages].swapaxes(1, 2).reshape(-1, 2, _DIM)[:context]
    prefix = np.cumsum(_terms(kv, np.arange(context)), dtype=np.uint64)
    states[first:plain] = prefix[context - (plain - first) :]
    if drafts:
        page, offset = np.divmod(step.slots[0, plain:last], PAGE_TOKENS)
        terms = _terms(pool[page, :, offset], step.positions[plain:last])
        for row in range(plain, last):
            parent = int(step.parents[row])
            before = states[parent] if parent >= plain else prefix[-1]
            states[row] = np.add(before, terms[row - plain : row - plain + 1])[0]


def _terms(kv: Float32, index: npt.NDArray[np.integer]) -> UInt64:
    """One well mixed 64-bit number per position, of its KV [n, 2, dim] and its place in the sequence."""
    words = np.ascontiguousarray(kv).reshape(len(kv), 2 * _DIM).view(np.uint64)
    x = (words * _MULTIPLIERS).sum(axis=1, dtype=np.uint64) ^ (index.astype(np.uint64) * _INDEX)
    return _mix(x)


def _mix(x: UInt64) -> UInt64:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _logits(states: UInt64, vocab: int, eos: frozenset[int]) -> Float32:
    logits = np.zeros((len(states), vocab), dtype=np.float32)
    rows = np.arange(len(states))
    # From the least likely on, so that the likeliest wins where two fall on one token.
    for i in reversed(range(len(_PEAKS))):
        logits[rows, (_mix(states + np.uint64(i)) % np.uint64(vocab)).astype(np.int64)] = _PEAKS[i]
    logits[:, [e for e in eos if e < vocab]] = -100.0
    return logits

"""An engine without a model: exact, instant or as slow as asked, and sensitive to every KV byte.

The KV of one position spells its token id and its position. What follows a context is a function of a hash over all
of the context's KV bytes as they lie in the pages, so that one wrong, missing or displaced byte changes the answer,
while batching, chunking, handoff, speculation and preemption do not. With a `span` there is a second layer, in a page
group of its own, of which only what the span shows counts. Tests and load tests run on it.
"""

import hashlib
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Sampling
from paceline.engine.interface import Outcome, Pages, Progress
from paceline.engine.layout import KvDtype, PageGroup, PageLayout, Plane
from paceline.engine.masks import Masks
from paceline.engine.profile import KvProfile
from paceline.engine.step import Float32, Int32, Step
from paceline.model.config import ModelConfig, Span

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
    kv_dtype: KvDtype = "float32"
    in_place = True
    page_memory: int | None = None

    def __init__(
        self,
        config: ModelConfig | None = None,
        *,
        vocab: int = 512,
        context: int = 8192,
        base_s: float = 0.0,
        token_s: float = 0.0,
        span: Span | None = None,
    ) -> None:
        """With a `config` the vocabulary, context and end tokens are the model's, so that its tokenizer fits."""
        self.layout = PageLayout((_group(0, None),) if span is None else (_group(0, None), _group(1, span)))
        self.vocab = config.vocab if config else vocab
        self.context = config.context if config else context
        self.eos_token_ids = config.eos_ids if config else frozenset({0})
        self.fingerprint = hashlib.sha256(f"paceline/fake/1 {self.vocab}".encode()).digest()
        self._base_s = base_s
        self._token_s = token_s
        self._kv: Float32 | None = None

    def load(self, progress: Progress) -> None:
        self.profile = KvProfile(self.fingerprint, self.kv_dtype, self.layout)
        progress(1, 1)

    def bind(self, pages: Pages) -> None:
        self._kv = pages.view(np.float32).reshape(len(pages), 2, PAGE_TOKENS, _DIM)

    def execute(self, step: Step) -> Float32:
        if self._kv is None:
            raise RuntimeError("execute before bind")
        done = time.monotonic() + self._base_s + self._token_s * len(step.tokens)
        states = np.zeros(len(step.tokens), dtype=np.uint64)
        for g, group in enumerate(self.layout.groups):
            _move(self._kv, step.moves[g])
            page, offset = np.divmod(step.slots[g], PAGE_TOKENS)
            self._kv[page, :, offset] = kv_of(step.tokens, step.positions, g)
            for s in range(step.sequences):
                _run_sequence(self._kv, step, s, g, group, states)
        logits = _logits(states[step.logit_rows], self.vocab, self.eos_token_ids)
        time.sleep(max(0.0, done - time.monotonic()))
        return logits

    def sample(self, step: Step, samplings: Sequence[Sampling | None], masks: Masks | None = None) -> Outcome:
        return self.execute(step)

    def export_pages(self, pages: Sequence[int]) -> None: ...

    def import_pages(self, pages: Sequence[int]) -> None: ...

    def close(self) -> None:
        self._kv = None

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` tokens that greedy generation must give after `prompt`, computed without any page."""
        tokens = list(prompt)
        for _ in range(count):
            positions = np.arange(len(tokens))
            state = np.zeros(1, dtype=np.uint64)
            for g, group in enumerate(self.layout.groups):
                terms = _terms(kv_of(np.array(tokens), positions, g), positions, g)
                state += np.add.reduce(terms[group.first_visible(len(tokens) - 1) :])
            tokens.append(int(_logits(state, self.vocab, self.eos_token_ids)[0].argmax()))
        return tokens[len(prompt) :]


def _group(layer: int, span: Span | None) -> PageGroup:
    return PageGroup((Plane(layer, "kv", 2, _DIM, "float32"),), span)


def kv_of(tokens: npt.NDArray[np.integer], positions: npt.NDArray[np.integer], layer: int = 0) -> Float32:
    """KV [n, K|V, dim]: K counts up in eighths from the token id, V from the position, layer 1 from far above both."""
    steps = np.arange(_DIM, dtype=np.float32) / np.float32(_DIM) + np.float32(layer << 20)
    kv: Float32 = np.stack([tokens, positions], axis=1).astype(np.float32)[:, :, None] + steps
    return kv


def _move(kv: Float32, moves: npt.NDArray[np.int64]) -> None:
    (from_page, to_page), (from_offset, to_offset) = (m.T for m in np.divmod(moves, PAGE_TOKENS))
    kv[to_page, :, to_offset] = kv[from_page, :, from_offset]


def _run_sequence(pool: Float32, step: Step, s: int, g: int, group: PageGroup, states: UInt64) -> None:
    """Add to `states` [T], for the rows of sequence s, the hash over all that each row attends to in one layer."""
    first, last = int(step.query_starts[s]), int(step.query_starts[s + 1])
    drafts = int(np.count_nonzero(step.parents[first:last] >= 0))
    plain = last - drafts
    context = int(step.contexts[s]) - drafts
    begin = group.first_page(context - (plain - first)) * PAGE_TOKENS
    pages = step.page_table[g, s, begin // PAGE_TOKENS : -(-context // PAGE_TOKENS)]
    kv = pool[pages].swapaxes(1, 2).reshape(-1, 2, _DIM)[: context - begin]
    sums = np.zeros(context - begin + 1, dtype=np.uint64)  # sums[i] is of the i positions from `begin` on
    np.cumsum(_terms(kv, np.arange(begin, context), g), out=sums[1:])
    positions = step.positions[first:last]
    visible = np.array([group.first_visible(p) for p in positions.tolist()])
    ends = np.minimum(positions + 1, context)
    states[first:last] += sums[ends - begin] - sums[np.minimum(visible, context) - begin]
    if drafts:
        page, offset = np.divmod(step.slots[g, plain:last], PAGE_TOKENS)
        terms = _terms(pool[page, :, offset], step.positions[plain:last], g)
        for row in range(plain, last):
            path = [n for n in _path(step.parents, row, plain) if step.positions[n] >= visible[row - first]]
            states[row : row + 1] += np.add.reduce(terms[np.array(path) - plain], keepdims=True)


def _path(parents: Int32, row: int, plain: int) -> list[int]:
    """A draft row and its ancestors among the rows from `plain` on."""
    path = []
    while row >= plain:
        path.append(row)
        row = int(parents[row])
    return path


def _terms(kv: Float32, index: npt.NDArray[np.integer], layer: int) -> UInt64:
    """One well mixed 64-bit number per position, of its KV [n, 2, dim], its place in the sequence and its layer."""
    words = np.ascontiguousarray(kv).reshape(len(kv), 2 * _DIM).view(np.uint64)
    place = index.astype(np.uint64) + np.uint64(layer << 32)
    x = (words * _MULTIPLIERS).sum(axis=1, dtype=np.uint64) ^ (place * _INDEX)
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

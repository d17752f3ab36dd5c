"""How likely a model holds continuations of a text.

All continuations of a text run in one step with it, as a tree of drafts runs: each is a chain of rows behind the text,
whose KV they share.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.windows import ROWS
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.interface import Engine
from paceline.engine.step import Float32, Step, no_moves
from paceline.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """Tokens of a text, at least one, and of its continuations, each of at least one."""

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """Of its tree: the last token of a continuation predicts nothing that is asked for."""
        return len(self.context) + sum(len(tokens) - 1 for tokens in self.continuations)


@dataclass(frozen=True)
class Likelihood:
    """Of one continuation; `greedy` where each of its tokens is the likeliest one."""

    log_probability: float
    greedy: bool


def encode(tokenizer: Tokenizer, context: str, continuations: Sequence[str]) -> Prompt:
    """Each continuation, none empty, in the tokens that it has behind `context`.

    A token may reach over the boundary: the context then ends before it, for all continuations alike, so that each
    begins with what the others also have to predict. Raises `ValueError` where nothing is left of the context.
    """
    wholes = [tokenizer.encode(context + continuation) for continuation in continuations]
    shared = tokenizer.encode(context)
    length = min(_common(shared, whole) for whole in wholes)
    if not length:
        raise ValueError(f"no token of {context!r} stays the same with what follows it")
    return Prompt(tuple(shared[:length]), tuple(tuple(whole[length:]) for whole in wholes))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def likelihoods(engine: Engine, prompts: Sequence[Prompt]) -> list[list[Likelihood]]:
    """For each prompt one of each continuation. `engine` has at least `pool_pages(prompts)` pages per page group."""
    found = []
    for batch in _batches(prompts):
        logits = engine.execute(tree_step(batch, len(engine.layout.groups)))
        at = 0
        for prompt in batch:
            last = at + prompt.rows - len(prompt.context) + 1
            found.append(_score(prompt, logits[at:last]))
            at = last
    return found


def pool_pages(prompts: Sequence[Prompt]) -> int:
    """Pages that the largest batch takes of each page group."""
    return max(sum(pages_for(prompt.rows) for prompt in batch) for batch in _batches(prompts))


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[Prompt]]:
    """Prompts in their order, of at most `ROWS` rows together where one alone does not have more."""
    batch: list[Prompt] = []
    for prompt in prompts:
        if batch and sum(p.rows for p in batch) + prompt.rows > ROWS:
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


def tree_step(prompts: Sequence[Prompt], groups: int) -> Step:
    """The trees of `prompts`, one sequence each, and the logits of every row from the last one of its context on."""
    rows = [prompt.rows for prompt in prompts]
    starts = np.cumsum([0, *rows])
    pages = [pages_for(n) for n in rows]
    table = np.zeros((groups, len(prompts), max(pages)), dtype=np.int32)
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    wanted: list[int] = []
    slots = np.empty((groups, starts[-1]), dtype=np.int64)
    for s, (prompt, start) in enumerate(zip(prompts, starts.tolist(), strict=False)):
        first = sum(pages[:s]) + sum(pages) * np.arange(groups)[:, None]
        table[:, s, : pages[s]] = first + np.arange(pages[s])
        slots[:, start : start + rows[s]] = first * PAGE_TOKENS + np.arange(rows[s])
        context = len(prompt.context)
        tokens += prompt.context
        positions += range(context)
        parents += [-1] * context
        wanted += range(start + context - 1, start + rows[s])
        for continuation in prompt.continuations:
            chain = range(len(continuation) - 1)
            parents += [len(tokens) - 1 + i if i else start + context - 1 for i in chain]
            positions += [context + i for i in chain]
            tokens += continuation[:-1]
    return Step(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slots=slots,
        parents=np.array(parents, dtype=np.int32),
        query_starts=starts.astype(np.int32),
        contexts=np.array(rows, dtype=np.int32),
        page_table=table,
        logit_rows=np.array(wanted, dtype=np.int32),
        moves=no_moves(groups),
    )


def _score(prompt: Prompt, logits: Float32) -> list[Likelihood]:
    """Of a prompt whose wanted rows have `logits` [n, vocab]: first the context's, then chain by chain."""
    best = logits.argmax(1)
    peak = logits.max(1)
    normalizers = peak + np.log(np.exp(logits - peak[:, None]).sum(1, dtype=np.float64))
    found, at = [], 1
    for tokens in prompt.continuations:
        rows = [0, *range(at, at + len(tokens) - 1)]
        at += len(tokens) - 1
        log_probability = float((logits[rows, tokens] - normalizers[rows]).sum())
        found.append(Likelihood(log_probability, bool((best[rows] == tokens).all())))
    return found

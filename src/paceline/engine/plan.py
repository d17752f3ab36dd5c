"""What one step runs and what came of it, as plain data between scheduler, engine thread and services."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.contracts.errors import PacelineError
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import FinishReason, TokenTree
from paceline.engine.drafts import depths
from paceline.engine.sequence import Sequence
from paceline.engine.step import Int64, Step


def _none() -> Int64:
    return np.empty((1, 0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Entry:
    """A sequence's part of a step: `rows` of its own tokens from `computed` on, then its drafts.

    With `samples` the last own row and every draft row want logits.
    """

    sequence: Sequence
    own: int
    drafts: TokenTree | None
    samples: bool

    @property
    def rows(self) -> int:
        return self.own + (len(self.drafts.tokens) if self.drafts is not None else 0)

    @property
    def wanted(self) -> int:
        """Rows of logits."""
        return 1 + self.rows - self.own if self.samples else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `filling` are sequences that got pages for a handoff; a plan may hold nothing else."""

    step: Step
    entries: tuple[Entry, ...]
    filling: tuple[Sequence, ...]

    def halves(self) -> "tuple[Plan, Plan]":
        """The same work in two steps."""
        middle = len(self.entries) // 2
        first, second = self.entries[:middle], self.entries[middle:]
        return Plan(build_step(first), first, self.filling), Plan(build_step(second), second, ())


@dataclass(frozen=True, slots=True)
class Advance:
    """What a step did for one sequence.

    `tokens` are new output tokens, the first of which is output token number `index`. `computed` positions have KV.
    `prompt_compute` are the seconds of steps up to the first token. With
    `finish_reason` the sequence has ended.
    """

    sequence: Sequence
    index: int
    tokens: tuple[int, ...]
    computed: int
    prompt_compute: float
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence that ended without an answer."""

    sequence: Sequence
    error: PacelineError


@dataclass(frozen=True, slots=True)
class StepResult:
    """Everything that happened in one step. `moves` [G, M, 2] are slots whose KV has to be copied before the next."""

    advances: tuple[Advance, ...]
    filling: tuple[Sequence, ...]
    failures: tuple[Failure, ...]
    moves: Int64 = field(default_factory=_none)

    def and_then(self, other: "StepResult") -> "StepResult":
        """Both, as if they had been one step whose moves are done."""
        return StepResult(
            self.advances + other.advances, self.filling + other.filling, self.failures + other.failures
        )


def build_moves(moves: Int64) -> Step:
    """A step of no tokens that only moves KV."""
    return replace(build_step([]), moves=moves)


def build_step(entries: Collection[Entry]) -> Step:
    """The flat arrays of `entries`; see `Step` for their meaning."""
    tokens: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    logit_rows: list[int] = []
    starts, contexts = [0], []
    slots: list[Int64] = []
    width = max((e.sequence.held for e in entries), default=0)
    table = np.zeros((1, len(entries), width), dtype=np.int32)
    for i, entry in enumerate(entries):
        sequence, row = entry.sequence, starts[-1]
        begin = sequence.computed
        last = begin + entry.own - 1
        tokens += sequence.tokens[begin : last + 1]
        positions += range(begin, last + 1)
        parents += [-1] * entry.own
        if entry.drafts is not None:
            tokens += entry.drafts.tokens
            positions += [last + depth for depth in depths(entry.drafts)]
            # The children of the root hang below the last own row.
            parents += [row + entry.own + parent for parent in entry.drafts.parents]
        if entry.samples:
            logit_rows += range(row + entry.own - 1, row + entry.rows)
        pages = sequence.pages[: sequence.held].astype(np.int64)
        where = np.arange(begin, begin + entry.rows, dtype=np.int64)
        slots.append(pages[where // PAGE_TOKENS] * PAGE_TOKENS + where % PAGE_TOKENS)
        table[0, i, : sequence.held] = sequence.pages[: sequence.held]
        starts.append(row + entry.rows)
        contexts.append(begin + entry.rows)
    return Step(
        tokens=np.asarray(tokens, dtype=np.int32),
        positions=np.asarray(positions, dtype=np.int32),
        slots=np.concatenate(slots)[None] if slots else np.empty((1, 0), dtype=np.int64),
        parents=np.asarray(parents, dtype=np.int32),
        query_starts=np.asarray(starts, dtype=np.int32),
        contexts=np.asarray(contexts, dtype=np.int32),
        page_table=table,
        logit_rows=np.asarray(logit_rows, dtype=np.int32),
    )

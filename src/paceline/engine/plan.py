"""What one step runs and what came of it, as plain data between scheduler, engine thread and services."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.contracts.errors import PacelineError
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import FinishReason, Sampling, TokenTree
from paceline.engine.drafts import depths
from paceline.engine.holdings import Holdings
from paceline.engine.sequence import Sequence
from paceline.engine.step import Int32, Int64, Step, no_moves


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

    @property
    def samplings(self) -> list[Sampling | None]:
        """For each wanted row how its token is drawn, or None where what was said before counts too."""
        return [
            None if entry.sequence.adjustments is not None else entry.sequence.sampling
            for entry in self.entries
            for _ in range(entry.wanted)
        ]

    def halves(self) -> "tuple[Plan, Plan]":
        """The same work in two steps."""
        middle = len(self.entries) // 2
        first, second = self.entries[:middle], self.entries[middle:]
        groups = len(self.step.page_table)
        return Plan(build_step(first, groups), first, self.filling), Plan(
            build_step(second, groups), second, ()
        )


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
    moves: Int64 = field(default_factory=no_moves)

    def and_then(self, other: "StepResult") -> "StepResult":
        """Both, as if they had been one step whose moves are done."""
        return StepResult(
            self.advances + other.advances, self.filling + other.filling, self.failures + other.failures
        )


def build_moves(moves: Int64) -> Step:
    """A step of no tokens that only moves KV."""
    return replace(build_step([], len(moves)), moves=moves)


def build_step(entries: Items[Entry], groups: int) -> Step:
    """The flat arrays of `entries` in a layout of `groups` page groups; see `Step` for their meaning."""
    rows = np.array([entry.rows for entry in entries], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(rows)])
    begins = np.array([entry.sequence.computed for entry in entries], dtype=np.int64)
    # Positions of plain rows; of draft rows only where their KV goes, by order.
    places = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], rows)
    positions = places.astype(np.int32)
    parents = np.full(starts[-1], -1, dtype=np.int32)
    tokens: list[int] = []
    logit_rows: list[int] = []
    for entry, row, begin in zip(entries, starts.tolist(), begins.tolist(), strict=False):
        tokens += entry.sequence.tokens[begin : begin + entry.own]
        if entry.drafts is not None:
            tokens += entry.drafts.tokens
            drafted = slice(row + entry.own, row + entry.rows)
            positions[drafted] = [begin + entry.own - 1 + depth for depth in depths(entry.drafts)]
            # The children of the root hang below the last own row.
            parents[drafted] = [row + entry.own + parent for parent in entry.drafts.parents]
        if entry.samples:
            logit_rows += range(row + entry.own - 1, row + entry.rows)
    table = _page_table([entry.sequence.holdings for entry in entries], groups)
    owners = np.repeat(np.arange(len(entries)), rows)
    pages = table[:, owners, places // PAGE_TOKENS].astype(np.int64)
    return Step(
        tokens=np.asarray(tokens, dtype=np.int32),
        positions=positions,
        slots=pages * PAGE_TOKENS + places % PAGE_TOKENS,
        parents=parents,
        query_starts=starts.astype(np.int32),
        contexts=(begins + rows).astype(np.int32),
        page_table=table,
        logit_rows=np.asarray(logit_rows, dtype=np.int32),
        moves=no_moves(groups),
    )


def _page_table(holdings: Items[Holdings], groups: int) -> Int32:
    width = max((h.end for h in holdings), default=0)
    table = np.zeros((groups, len(holdings), width), dtype=np.int32)
    for i, held in enumerate(holdings):
        table[:, i, : held.end] = held.pages[:, : held.end]
    return table

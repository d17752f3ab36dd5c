"""What one step runs and what came of it, as plain data between scheduler, engine thread and services."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from paceline.contracts.errors import PacelineError
from paceline.contracts.frames import Logprobs
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import FinishReason, Sampling, TokenTree
from paceline.engine.drafts import depths
from paceline.engine.masks import Constrained
from paceline.engine.pages import Tags
from paceline.engine.sequence import Sequence
from paceline.engine.step import Int32, Int64, Step, no_moves
from paceline.engine.tables import PageTables

_NO_MOVES = no_moves()


# A struct, as there is one for each sequence of each step: 0.1 us instead of 1.2 us for a frozen dataclass.
class Entry(msgspec.Struct, frozen=True, eq=False):
    """A sequence's part of a step: `rows` of its own tokens from `computed` on, then its drafts.

    With `samples` the last own row and every draft row want logits. The `scored` own rows from number `unscored` on,
    which are not the last one, want them for the log probabilities of the prompt tokens behind them.
    """

    sequence: Sequence
    own: int
    drafts: TokenTree | None
    samples: bool
    unscored: int = 0
    scored: int = 0

    @property
    def rows(self) -> int:
        return self.own + (len(self.drafts.tokens) if self.drafts is not None else 0)

    @property
    def wanted(self) -> int:
        """Rows of logits."""
        if not self.samples:
            return self.scored
        return self.scored + (1 if self.drafts is None else 1 + len(self.drafts.tokens))


class Scored(msgspec.Struct, frozen=True, eq=False):
    """Of the wanted rows the `count` from number `row` on are those of a prompt's positions from `position` on, of
    whose next tokens log probabilities are wanted."""

    sequence: Sequence
    position: int
    row: int
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One step. `filling` are sequences that got pages for a handoff; a plan may hold nothing else.

    `tags` are those that the pages of `step.page_table` bore when they were taken, `NO_TAG` where there is none.
    `samplings` say for each wanted row how its token is drawn, None where its logits are wanted. Rows of `constrained`
    sequences have masks, from those that are `scored` come log probabilities of prompts.
    """

    step: Step
    tags: Tags
    entries: tuple[Entry, ...]
    samplings: list[Sampling | None]
    filling: tuple[Sequence, ...]
    constrained: tuple[Constrained, ...]
    scored: tuple[Scored, ...]

    @property
    def decodes(self) -> bool:
        """Every sequence runs the one token that it lacks, and nothing else."""
        return len(self.step.tokens) == len(self.samplings) == len(self.entries) > 0 and not self.scored

    def halves(self) -> "tuple[Plan, Plan]":
        """The same work in two steps."""
        middle = len(self.entries) // 2
        tables = PageTables(len(self.step.page_table))
        return (
            build_plan(self.entries[:middle], self.filling, tables),
            build_plan(self.entries[middle:], (), tables),
        )


class Advance(msgspec.Struct, frozen=True, eq=False):
    """What a step did for one sequence.

    `tokens` are new output tokens, the first of which is output token number `index`, with their `logprobs` where they
    are wanted. `computed` positions have KV. `prompt_compute` are the seconds of steps up to the first token. With
    `finish_reason` the sequence has ended.
    """

    sequence: Sequence
    index: int
    tokens: tuple[int, ...]
    computed: int
    prompt_compute: float
    finish_reason: FinishReason | None
    logprobs: tuple[Logprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A sequence that ended without an answer."""

    sequence: Sequence
    error: PacelineError


class StepResult(msgspec.Struct, frozen=True, eq=False):
    """Everything that happened in one step. `moves` [G, M, 2] are slots whose KV has to be copied before the next."""

    advances: tuple[Advance, ...]
    filling: tuple[Sequence, ...]
    failures: tuple[Failure, ...]
    moves: Int64 = _NO_MOVES

    def and_then(self, other: "StepResult") -> "StepResult":
        """Both, as if they had been one step whose moves are done."""
        return StepResult(
            self.advances + other.advances, self.filling + other.filling, self.failures + other.failures
        )


def build_moves(moves: Int64) -> Step:
    """A step of no tokens that only moves KV."""
    return replace(build_plan((), (), PageTables(len(moves))).step, moves=moves)


def build_plan(entries: Items[Entry], filling: Items[Sequence], tables: PageTables) -> Plan:
    """The plan that runs `entries`, in flat arrays; see `Step` for their meaning. `tables` are those of the step
    before, which are brought up to date."""
    tokens: list[int] = []
    begins: list[int] = []
    counts: list[int] = []
    logit_rows: list[int] = []
    samplings: list[Sampling | None] = []
    drafted: list[tuple[Entry, int]] = []  # with the first own row
    constrained: list[Constrained] = []
    scored: list[Scored] = []
    for entry in entries:
        sequence, row = entry.sequence, len(tokens)
        begin = sequence.computed
        begins.append(begin)
        if entry.own == 1 and entry.drafts is None:
            tokens.append(sequence.tokens[begin])
        else:
            tokens += sequence.tokens[begin : begin + entry.own]
            if entry.drafts is not None:
                tokens += entry.drafts.tokens
                drafted.append((entry, row))
        end = len(tokens)
        counts.append(end - row)
        if entry.scored:
            first = row + entry.unscored
            scored.append(Scored(sequence, begin + entry.unscored, len(logit_rows), entry.scored))
            logit_rows += range(first, first + entry.scored)
            samplings += [None] * entry.scored
        if entry.samples:
            if sequence.constraint is not None:
                constrained.append(Constrained(sequence.constraint, len(logit_rows), entry.drafts))
            logit_rows += range(row + entry.own - 1, end)
            samplings += [sequence.sampling if sequence.drawable else None] * (entry.wanted - entry.scored)
    count, total = len(entries), len(tokens)
    computed = np.array(begins, dtype=np.int64)
    owners, starts = np.arange(count), np.arange(count + 1, dtype=np.int32)
    places, contexts = computed, computed + 1
    if total != count:
        # Otherwise each has one row, as in most steps.
        rows = np.array(counts, dtype=np.int64)
        owners = np.repeat(owners, rows)
        np.cumsum(rows, out=starts[1:])
        # Positions of plain rows; of draft rows only where their KV goes, by order.
        places = np.arange(total) + (computed - starts[:-1])[owners]
        contexts = computed + rows
    positions = places.astype(np.int32)
    parents = np.full(total, -1, dtype=np.int32)
    for entry, row in drafted:
        _place_drafts(entry, row, positions, parents)
    table, tags = tables.of([entry.sequence.holdings for entry in entries])
    groups, _, width = table.shape
    pages = table.reshape(groups, count * width).take(owners * width + places // PAGE_TOKENS, axis=1)
    step = Step(
        tokens=np.array(tokens, dtype=np.int32),
        positions=positions,
        slots=pages.astype(np.int64) * PAGE_TOKENS + places % PAGE_TOKENS,
        parents=parents,
        query_starts=starts,
        contexts=contexts.astype(np.int32),
        page_table=table,
        logit_rows=np.array(logit_rows, dtype=np.int32),
        moves=no_moves(groups),
    )
    return Plan(step, tags, tuple(entries), samplings, tuple(filling), tuple(constrained), tuple(scored))


def _place_drafts(entry: Entry, row: int, positions: Int32, parents: Int32) -> None:
    """Give the draft rows of `entry`, whose first own row is `row`, their depths as positions, and their parents."""
    tree = entry.drafts
    if tree is None:
        return
    last = row + entry.own - 1
    rows = slice(last + 1, last + 1 + len(tree.tokens))
    positions[rows] = [int(positions[last]) + depth for depth in depths(tree)]
    # The children of the root hang below the last own row.
    parents[rows] = [last + 1 + parent for parent in tree.parents]

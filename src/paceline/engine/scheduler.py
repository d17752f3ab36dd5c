"""Which tokens run in the next step: pure bookkeeping, no tensors, no clock of its own.

There is no prefill or decode phase: a sequence has tokens, some of them computed, and each step lets `computed` catch
up (the idea of vLLM V1). A step is filled in this order:

1. sequences with one token to run (they decode), each with its drafts as far as the budget goes;
2. chunks of longer rests, shortest remaining first. Waiting lowers a rest by `AGEING` tokens per second, so that a
   short turn overtakes a long prompt, but not for ever. In the same order whoever waits gets pages, handoffs and
   preempted sequences included.

Pages for a whole prompt are taken or promised when it is admitted (`allocator`), so that only decoding competes. When a
decoding sequence finds no page, the latest arrival gives all of its pages back and is recomputed later, prefix cache
permitting.

Work of low priority waits as if it had come `PATIENCE` seconds later, decodes behind all other, and gives its pages
back first: also to whoever cannot be admitted without them.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from paceline.contracts.errors import IntegrityError, InternalError, InvalidRequest, PacelineError
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import CachedTokens, TokenTree
from paceline.engine import drafts
from paceline.engine.allocator import Allocator
from paceline.engine.decoding import Decoding
from paceline.engine.demand import Demand
from paceline.engine.layout import PageGroup
from paceline.engine.masks import permits
from paceline.engine.pages import PagePool
from paceline.engine.plan import Advance, Entry, Failure, Plan, StepResult, build_plan
from paceline.engine.sequence import Forbidden, Sequence, State
from paceline.engine.step import Int64, no_moves
from paceline.engine.tables import PageTables

AGEING = 1000.0
"""Tokens per second by which waiting shortens a rest. At the prefill rate of the worker this would be FIFO."""

PATIENCE = 600.0
"""Seconds that work of low priority lets others go ahead: long, and yet it is not starved."""

MAX_FORCED = 16
"""Tokens that a grammar forces, and that are verified in one step."""

MAX_SCORED = 32
"""Rows of one sequence and step from which log probabilities of its prompt are computed: some milliseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one step."""

    step_tokens: int = 256
    sequences: int = 64


RowT = TypeVar("RowT")
RowT_co = TypeVar("RowT_co", covariant=True)
Sampler = Callable[[RowT, Sequence, int], int]
"""(what the engine gave for a row, sequence, position of the row) -> token"""


class Rows(Protocol[RowT_co]):
    """Of the wanted rows of a step, in order: an array of logits, or a list."""

    def __getitem__(self, index: int, /) -> RowT_co: ...


class Scheduler:
    """All sequences of one worker. Used by the engine thread alone."""

    def __init__(
        self, pool: PagePool, groups: Items[PageGroup], *, vocab: int, context: int, limits: Limits
    ) -> None:
        """`groups` are those of the layout in which `pool` holds pages."""
        self.pool = pool
        self._demand = Demand(groups, limits.step_tokens)
        self.allocator = Allocator(pool, groups, self._demand)
        self._vocab = vocab
        self._context = context
        self._largest = min(pool.total, self._demand.most(context))
        self._limits = limits
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # in `_order`
        self._filling: list[Sequence] = []
        self._tables = PageTables(len(groups))
        self._no_moves = no_moves(len(groups))
        self._spans = any(group.span is not None for group in groups)
        self._decoding: Decoding | None = None  # what may become steady
        self._steady: Decoding | None = None  # what goes on with the next step, if nothing happens until then
        self._checked: tuple[Plan, int] | None = None

    # What others ask for, between steps.

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. A `remote` one is FILLING as soon as there is room, and runs after `join`."""
        sequence.hash_full_pages()
        sequence.state = State.WAITING
        self._waiting.append(sequence)
        self._steady = None

    def join(self, sequence: Sequence, first_token: int) -> None:
        """The pages of a FILLING sequence hold its whole prompt, and `first_token` follows it.

        Raises `IntegrityError` when one of its pages is no longer its own, or the grammar forbids that token.
        """
        if sequence.state is not State.FILLING:
            raise IntegrityError(f"sequence {sequence.request_id} is {sequence.state.value}, not filling")
        if not self.allocator.owns(sequence):
            raise IntegrityError(f"pages of sequence {sequence.request_id} changed hands during the handoff")
        computed = len(sequence.tokens)
        try:
            sequence.append(first_token)
        except ValueError as error:
            raise IntegrityError(f"sequence {sequence.request_id} cannot go on: {error}") from error
        self._filling.remove(sequence)
        sequence.computed = computed
        sequence.remote = False
        sequence.decoding = True
        self._run(sequence)
        self._foresee(sequence)
        self.allocator.advance(sequence)

    def expect(self, sequence: Sequence) -> None:
        """Somebody has room for the pages of an `early` sequence now."""
        sequence.early = False

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence in any state and free its pages. Does nothing when it is gone already."""
        self._leave(sequence)
        self.allocator.release(sequence)

    def quarantine(self, sequence: Sequence) -> list[int]:
        """Abort a FILLING sequence whose pages the prefill worker may still write; the pages to end it for."""
        self._leave(sequence)
        return self.allocator.quarantine(sequence, sequence.computed // PAGE_TOKENS)

    def offer(self, sequence: Sequence, base: int, tree: TokenTree) -> None:
        """Take a draft for the tokens from position `base` on; wrong or stale ones are ignored."""
        usable = sequence.state is State.RUNNING and base <= len(sequence.tokens)
        if usable and drafts.well_formed(tree, self._vocab):
            sequence.drafts, sequence.draft_base = tree, base
            self._steady = None

    @property
    def room(self) -> int:
        """Positions that a sequence may have."""
        return self._demand.room(self.pool.total, self._context)

    @property
    def idle(self) -> bool:
        """Nothing waits or runs. FILLING and HELD sequences wait for others, not for a step."""
        return not self._waiting and not self._running

    @property
    def sequences(self) -> int:
        return len(self._waiting) + len(self._running) + len(self._filling)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that this worker has still to compute."""
        local = (s for s in self._waiting if not s.remote)
        return sum(s.remaining for s in local) + sum(s.remaining for s in self._running if s.remaining > 1)

    # The step.

    def schedule(self, now: float) -> Plan | None:
        """The next step, or None when nothing can run or be admitted now.

        Its arrays are good until the next call.
        """
        steady, self._steady = self._steady, None
        if steady is not None and steady.advance():
            return steady.plan
        entries: list[Entry] = []
        budget = self._limits.step_tokens
        for sequence in list(self._running):
            if budget <= 0:
                break
            # Not if an earlier one took its pages.
            if sequence.state is State.RUNNING and sequence.remaining == 1:
                entry = self._decode(sequence, budget)
                if entry is not None:
                    entries.append(entry)
                    budget -= entry.rows
        filling: list[Sequence] = []
        blocked = False
        spare = self.allocator.spare
        for sequence in sorted(self._candidates(), key=lambda s: _urgency(s, now)):
            if sequence.state is State.WAITING:
                if blocked or self._is_too_early(sequence, spare) or (budget <= 0 and not sequence.remote):
                    continue
                while not (admitted := self._has_room() and self.allocator.admit(sequence)):
                    victim = self._dispensable(sequence)
                    if victim is None:
                        break
                    self._preempt(victim)
                    entries, dropped = _without(victim, entries)
                    budget += dropped
                spare = self.allocator.spare
                if not admitted:
                    # Whoever is first in order gets the next free pages: letting others by would starve it.
                    blocked = True
                    continue
                self._admit(sequence, now)
            if sequence.state is State.FILLING:
                filling.append(sequence)
            elif sequence.state is State.RUNNING and (entry := self._chunk(sequence, budget)) is not None:
                entries.append(entry)
                budget -= entry.rows
        if not entries and not filling:
            return None
        plan = build_plan(entries, filling, self._tables)
        # With spans pages are given back on the way.
        alone = plan.decodes and not self._waiting and not self._spans
        self._decoding = Decoding(plan) if alone and len(entries) == len(self._running) else None
        return plan

    def check(self, plan: Plan) -> list[Failure]:
        """Abort every sequence of the plan that refers to a page under an old tag. One comparison for the batch, and
        none for one that was compared already since a tag changed."""
        state = plan, self.pool.tags.changes
        if self._checked == state:
            return []
        table = plan.step.page_table
        stale = self.pool.tags.stale(table, plan.tags)
        if not len(stale):
            self._checked = state
            return []
        damaged = {int(i) for i in np.unravel_index(stale, table.shape)[1]}
        failures = []
        for i in sorted(damaged):
            sequence = plan.entries[i].sequence
            self._leave(sequence)
            self.allocator.forget(sequence)
            error = IntegrityError(f"request {sequence.request_id} refers to pages that changed hands")
            failures.append(Failure(sequence, error))
        return failures

    def commit(self, plan: Plan, rows: Rows[RowT], sample: Sampler[RowT], seconds: float) -> StepResult:
        """Sample, verify drafts, advance every sequence, publish full pages, end what is finished."""
        advances: list[Advance] = []
        failures: list[Failure] = []
        moves: list[tuple[Int64, Int64]] = []
        row = 0
        for entry in plan.entries:
            try:
                advances.append(self._advance(entry, rows, row, sample, moves, seconds))
            except ValueError as error:
                self.abort(entry.sequence)
                failures.append(Failure(entry.sequence, self._why_not_sampled(entry.sequence, error)))
            row += entry.wanted
        if self._decoding is not None and plan is self._decoding.plan:
            everybody = len(plan.entries) == len(advances) == len(self._running)
            drafted = plan.constrained and any(e.sequence.drafts is not None for e in plan.entries)
            self._steady = self._decoding if everybody and not drafted else None
        pairs = np.array(moves).transpose(2, 0, 1) if moves else self._no_moves
        return StepResult(tuple(advances), plan.filling, tuple(failures), pairs)

    def fail(self, plan: Plan, error: InternalError) -> StepResult:
        """The step could not run: end its sequences, keep everybody else's."""
        for entry in plan.entries:
            self.abort(entry.sequence)
        failures = tuple(Failure(entry.sequence, error) for entry in plan.entries)
        return StepResult((), plan.filling, failures)

    # Admission.

    def _admit(self, sequence: Sequence, now: float) -> None:
        """The sequence has its pages."""
        self._waiting.remove(sequence)
        if sequence.remote:
            sequence.state = State.FILLING
            self._filling.append(sequence)
            return
        self._run(sequence)
        if sequence.cached is None:
            host = min(sequence.imported, sequence.computed)
            sequence.cached = CachedTokens(device=sequence.computed - host, host=host)
            sequence.started = now

    def _is_too_early(self, sequence: Sequence, spare: int) -> bool:
        """Whether its pages would be parked where the largest prompt may be wanted.

        Otherwise a prefill and a decode worker deadlock, each full of pages of requests that the other has no room for.
        """
        return sequence.early and spare - self._demand.most(len(sequence.tokens)) < self._largest

    def _has_room(self) -> bool:
        return len(self._running) + len(self._filling) < self._limits.sequences

    def _candidates(self) -> list[Sequence]:
        return [s for s in self._running if s.remaining > 1] + self._waiting

    def _dispensable(self, sequence: Sequence) -> Sequence | None:
        """Whoever of low priority has come last, if `sequence` may have its place."""
        victim = self._running[-1] if self._running and not sequence.low_priority else None
        # Pages that are handed over may be read at any time.
        return victim if victim is not None and victim.low_priority and not victim.hold else None

    def _chunk(self, sequence: Sequence, budget: int) -> Entry | None:
        """As much of a longer rest as the budget has room for, or None when there is none."""
        begin = sequence.computed
        rows = min(sequence.remaining, budget, MAX_SCORED if sequence.scores else budget)
        if rows <= 0 or not self.allocator.extend(sequence, begin + rows):
            return None
        entry = Entry(sequence, rows, None, samples=rows == sequence.remaining)
        if not sequence.scores:
            return entry
        first = max(begin, len(sequence.prompt_logprobs))
        count = max(0, min(begin + rows, sequence.prompt_tokens - 1) - first)
        return msgspec.structs.replace(entry, unscored=first - begin, scored=count)

    # Decoding.

    def _decode(self, sequence: Sequence, budget: int) -> Entry | None:
        """One token and its drafts, or None when the sequence itself had to give way."""
        length = len(sequence.tokens)
        tree = None if sequence.drafts is None else self._usable_draft(sequence, budget - 1)
        if tree is not None and not self._grow(sequence, length + len(tree.tokens), preempt=False):
            tree = None
        if (
            tree is None
            and length > sequence.holdings.capacity
            and not self._grow(sequence, length, preempt=True)
        ):
            return None
        return Entry(sequence, 1, tree, samples=True)

    def _usable_draft(self, sequence: Sequence, budget: int) -> TokenTree | None:
        tree, sequence.drafts = sequence.drafts, None
        if tree is None:
            return None
        rest = drafts.advance(tree, sequence.tokens[sequence.draft_base :])
        # The step itself gives one token, and none is wanted behind `limit`.
        room = sequence.limit - len(sequence.tokens) - 1
        return None if rest is None else drafts.truncate(rest, min(budget, room))

    def _grow(self, sequence: Sequence, tokens: int, *, preempt: bool) -> bool:
        """Have pages for `tokens` positions."""
        while not self.allocator.extend(sequence, tokens):
            # One that does not decode yet has a promise, which is kept in a moment.
            if not preempt or not sequence.decoding:
                return False
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.allocator.release(sequence)
        sequence.state = State.WAITING
        sequence.hash_full_pages()
        self._waiting.append(sequence)

    # After the step.

    def _advance(
        self,
        entry: Entry,
        rows: Rows[RowT],
        row: int,
        sample: Sampler[RowT],
        moves: list[tuple[Int64, Int64]],
        seconds: float,
    ) -> Advance:
        """`row` is the first of `rows` that the entry wanted, if it wanted any."""
        sequence = entry.sequence
        if sequence.decoding:
            sequence.steps += 1
            sequence.compute += seconds
        else:
            sequence.prompt_compute += seconds
        index = len(sequence.tokens)
        sequence.computed += entry.own
        row += entry.scored
        if entry.samples:
            if entry.drafts is None:
                self._append(sequence, rows[row], sample)
            else:
                self._follow(sequence, entry.drafts, rows, row, sample, moves)
            sequence.decoding = True
            self._foresee(sequence)
            self.allocator.settle(sequence)
        self.allocator.advance(sequence)
        logprobs, sequence.logprobs = sequence.logprobs, []
        advance = Advance(
            sequence,
            index - sequence.prompt_tokens,
            tuple(sequence.tokens[index:]),
            sequence.computed,
            sequence.prompt_compute,
            sequence.finish_reason,
            tuple(logprobs),
        )
        if sequence.finish_reason is not None:
            self._finish(sequence)
        return advance

    def _append(self, sequence: Sequence, row: RowT, sample: Sampler[RowT]) -> int:
        """The next token of the output, after which the sequence may have ended."""
        token = sample(row, sequence, len(sequence.tokens) - 1)
        sequence.append(token)
        if token in sequence.stop or (sequence.constraint is not None and sequence.constraint.ended):
            sequence.finish_reason = "stop"
        elif len(sequence.tokens) >= sequence.limit:
            sequence.finish_reason = "length"
        return token

    def _foresee(self, sequence: Sequence) -> None:
        """Offer the tokens that the grammar forces as a draft, which is right unless other tokens spell the same."""
        if sequence.constraint is None or sequence.finish_reason is not None:
            return
        forced = sequence.constraint.forced()[:MAX_FORCED]
        if forced:
            chain = TokenTree(tokens=forced, parents=list(range(-1, len(forced) - 1)))
            self.offer(sequence, len(sequence.tokens), chain)

    def _follow(
        self,
        sequence: Sequence,
        tree: TokenTree,
        rows: Rows[RowT],
        row: int,
        sample: Sampler[RowT],
        moves: list[tuple[Int64, Int64]],
    ) -> None:
        """Append sampled tokens as long as the tree foresaw them, with their KV in order of position."""
        base, holdings = sequence.computed, sequence.holdings

        def next_token(node: int) -> int:
            if sequence.finish_reason is not None:
                return drafts.NO_TOKEN
            return self._append(sequence, rows[row + 1 + node], sample)

        _, path = drafts.verify(tree, next_token)
        for depth, node in enumerate(path):
            if node != depth:
                moves.append((holdings.slots(base + node), holdings.slots(base + depth)))
        sequence.computed = base + len(path)
        sequence.accepted += len(path)
        sequence.drafted += len(tree.tokens)

    def _why_not_sampled(self, sequence: Sequence, error: ValueError) -> PacelineError:
        """What is the grammar's fault would happen again elsewhere."""
        reason = None
        if sequence.constraint is not None:
            reason = sequence.constraint.error
            # Its library masks a token that ends answers like any other, and takes it at the end only.
            if isinstance(error, Forbidden) and permits(sequence.constraint, error.token, self._vocab):
                reason = f"it asks for token {error.token}, which ends an answer, and does not end there"
        if reason:
            return InvalidRequest(f"the grammar cannot be followed: {reason}", param="grammar")
        return InternalError(f"no token can be sampled: {error}")

    def _finish(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        if sequence.hold:
            sequence.state = State.HELD
        else:
            sequence.state = State.GONE
            self.allocator.release(sequence)

    # States.

    def _run(self, sequence: Sequence) -> None:
        self._steady = None
        sequence.state = State.RUNNING
        place = len(self._running)
        while place > 0 and _order(self._running[place - 1]) > _order(sequence):
            place -= 1
        self._running.insert(place, sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._steady = None
        lists = {State.WAITING: self._waiting, State.RUNNING: self._running, State.FILLING: self._filling}
        if sequence.state in lists:
            lists[sequence.state].remove(sequence)
        sequence.state = State.GONE


def _urgency(sequence: Sequence, now: float) -> tuple[float, float]:
    work = 0 if sequence.remote else sequence.remaining
    waited = now - sequence.arrival - (PATIENCE if sequence.low_priority else 0.0)
    return (work - AGEING * waited, sequence.arrival)


def _order(sequence: Sequence) -> tuple[bool, float]:
    """By which sequences decode, and the last one gives way."""
    return (sequence.low_priority, sequence.arrival)


def _without(sequence: Sequence, entries: list[Entry]) -> tuple[list[Entry], int]:
    """The entries of others, and how many rows that are less."""
    others = [entry for entry in entries if entry.sequence is not sequence]
    return others, sum(entry.rows for entry in entries) - sum(entry.rows for entry in others)

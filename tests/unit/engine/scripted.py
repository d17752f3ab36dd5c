"""A grammar that is a list of sentences, and a model whose logits are scripted, under a scheduler."""

from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from paceline.contracts.messages import Sampling
from paceline.engine.interface import Outcome
from paceline.engine.masks import Masks
from paceline.engine.plan import Plan, StepResult
from paceline.engine.runner import StepRunner, sample_row
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import Float32, Int32, Step
from tests.builders import VOCAB, successor


class Sentences:
    """Implements `Constraint`: the output is one of `sentences`, of which none begins with another."""

    def __init__(self, *sentences: tuple[int, ...], error: str | None = None) -> None:
        self.sentences = sentences
        self.taken: tuple[int, ...] = ()
        self.error = error

    @property
    def ended(self) -> bool:
        return self.taken in self.sentences

    def take(self, token: int) -> bool:
        if token not in self._next():
            return False
        self.taken += (token,)
        return True

    def take_back(self) -> None:
        self.taken = self.taken[:-1]

    def fill(self, mask: Int32) -> None:
        mask[:] = 0
        if self.error is None:
            bits = mask.view(np.uint32)
            for token in self._next():
                bits[token // 32] |= np.uint32(1 << token % 32)

    def forced(self) -> list[int]:
        forced: list[int] = []
        while len(choice := self._next(tuple(forced))) == 1:
            forced += choice
        return forced

    def _next(self, more: tuple[int, ...] = ()) -> set[int]:
        begin = self.taken + more
        return {s[len(begin)] for s in self.sentences if s[: len(begin)] == begin and len(s) > len(begin)}


class Unforced(Sentences):
    """Offers no drafts."""

    def forced(self) -> list[int]:
        return []


class Scripted:
    """As much of an `Engine` as the runner needs: after a token comes `successor` of it, with noise of its place.

    It draws tokens itself where `draws` says so and it may."""

    vocab = VOCAB

    def __init__(self, draws: Callable[[Float32, Sampling, int, Int32 | None], int] | None = None) -> None:
        self._draws = draws
        self.masks: list[Masks | None] = []

    def sample(self, step: Step, samplings: Items[Sampling | None], masks: Masks | None = None) -> Outcome:
        self.masks.append(masks)
        logits = self.logits(step)
        if self._draws is None:
            return logits
        of = dict(zip(masks.rows, masks.bits, strict=True)) if masks else {}
        positions = step.positions[step.logit_rows].tolist()
        return [
            logits[i] if s is None else self._draws(logits[i], s, positions[i], of.get(i))
            for i, s in enumerate(samplings)
        ]

    def logits(self, step: Step) -> Float32:
        return np.array(
            [row_of(int(step.tokens[r]), int(step.positions[r])) for r in step.logit_rows], dtype=np.float32
        ).reshape(-1, VOCAB)


def row_of(token: int, position: int) -> Float32:
    """The logits behind `token` at `position`."""
    row: Float32 = np.random.default_rng(1000 * position + token).normal(0, 1, VOCAB).astype(np.float32)
    row[successor(token)] += 4.0
    return row


def turn(scheduler: Scheduler, runner: StepRunner, now: float = 0.0) -> tuple[Plan, StepResult]:
    """One whole step."""
    plan = scheduler.schedule(now)
    assert plan is not None
    assert scheduler.check(plan) == []
    return plan, scheduler.commit(plan, runner.run(plan), sample_row, 0.01)


def finish(scheduler: Scheduler, runner: StepRunner, *sequences: Sequence) -> None:
    """Run until all have ended."""
    while any(s.finish_reason is None for s in sequences):
        turn(scheduler, runner)

"""The thread that owns engine and scheduler."""

import asyncio
from collections.abc import Sequence as Items

import numpy as np

from paceline.contracts.messages import Sampling
from paceline.engine.fake import FakeEngine
from paceline.engine.interface import Outcome
from paceline.engine.masks import Masks
from paceline.engine.plan import StepResult
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import Float32, Step
from paceline.engine.thread import EngineThread
from tests.builders import make_pool, make_sequence
from tests.helpers import until

POISON = 13


class Picky(FakeEngine):
    """Cannot run a step that holds `POISON`."""

    def execute(self, step: Step) -> Float32:
        if POISON in step.tokens:
            raise RuntimeError("poison")
        return super().execute(step)


class Drawing(FakeEngine):
    """Draws from the logits itself wherever it may, and finds no distribution in those behind `POISON`."""

    def sample(self, step: Step, samplings: Items[Sampling | None], masks: Masks | None = None) -> Outcome:
        logits = self.execute(step)
        tokens = step.tokens[step.logit_rows].tolist()
        return [
            row if sampling is None else -1 if token == POISON else int(row.argmax())
            for row, sampling, token in zip(logits, samplings, tokens, strict=True)
        ]


class Running:
    """A thread, and what came of its steps."""

    def __init__(self, engine: FakeEngine) -> None:
        pool = make_pool(32)
        engine.bind(np.zeros((32, engine.layout.page_bytes), dtype=np.uint8))
        self.scheduler = Scheduler(
            pool, engine.layout.groups, vocab=engine.vocab, context=engine.context, limits=Limits()
        )
        self.results: list[StepResult] = []
        self.thread = EngineThread(engine, self.scheduler, self.results.append)
        self.thread.start()

    def failed(self) -> list[Sequence]:
        return [f.sequence for r in self.results for f in r.failures]

    def finished(self) -> list[Sequence]:
        return [a.sequence for r in self.results for a in r.advances if a.finish_reason]


async def test_one_request_that_the_engine_cannot_run_fails_alone() -> None:
    running = Running(Picky())
    prompts = [[i, i + 1, i + 2] for i in (20, 30, 40, 50, 60)]
    good = [make_sequence(p, output=5, name=str(p[0])) for p in prompts]
    bad = make_sequence([7, POISON], output=5, name="bad")

    def add(scheduler: Scheduler) -> None:
        for sequence in (*good[:3], bad, *good[3:]):
            scheduler.add(sequence)

    await running.thread.call(add)
    await until(lambda: len(running.finished()) == 5)
    assert running.failed() == [bad]
    for sequence, prompt in zip(good, prompts, strict=True):
        assert sequence.tokens[3:] == FakeEngine().greedy(prompt, 5)
    running.scheduler.pool.check()
    assert running.scheduler.pool.used == 0
    await running.thread.stop()


async def test_a_command_returns_its_result_or_raises_its_error() -> None:
    running = Running(Picky())
    assert await running.thread.call(lambda scheduler: scheduler.sequences) == 0
    errors = await asyncio.gather(running.thread.call(lambda _: 1 // 0), return_exceptions=True)
    assert isinstance(errors[0], ZeroDivisionError)
    await running.thread.stop()


async def test_an_engine_may_draw_tokens_where_nothing_was_said_that_counts() -> None:
    """Penalties and biases are the host's; both kinds of sequences share steps."""
    running = Running(Drawing())
    plain = make_sequence([20, 21, 22], output=5, name="plain")
    likeliest = FakeEngine().greedy([30, 31], 1)[0]
    banned = Sampling(max_tokens=1, temperature=0.0, logit_bias={likeliest: -100.0})
    biased = make_sequence([30, 31], output=1, name="biased", sampling=banned)
    bad = make_sequence([7, POISON], output=5, name="bad")

    def add(scheduler: Scheduler) -> None:
        for sequence in (plain, biased, bad):
            scheduler.add(sequence)

    await running.thread.call(add)
    await until(lambda: len(running.finished()) == 2)
    assert running.failed() == [bad]
    assert plain.tokens[3:] == FakeEngine().greedy([20, 21, 22], 5)
    assert biased.tokens[2] != likeliest
    await running.thread.stop()

"""The engine under the scheduler: every row that is sampled from has the logits that transformers computes for the same
tokens, however the scheduler cut, batched, reused and recomputed them."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline.contracts.messages import TokenTree
from paceline.engine.interface import Engine
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import build_moves
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence, State
from paceline.engine.step import Float32
from tests.builders import make_sequence
from tests.unit.engine_torch.models import PAGES, VOCAB, Reference


class Checked:
    """Runs sequences greedily and compares each row of logits; there are `pages` for each page group."""

    def __init__(
        self, engine: Engine, reference: Reference, *, pages: int = PAGES, step_tokens: int = 256
    ) -> None:
        groups = engine.layout.groups
        count = pages * len(groups)
        self.pool = PagePool(count, PageTags(np.zeros(count, dtype=np.uint64)))
        self.scheduler = Scheduler(self.pool, groups, vocab=VOCAB, context=512, limits=Limits(step_tokens))
        self._engine = engine
        self._reference = reference
        self.compared = 0

    def sequence(self, tokens: list[int], output: int, number: int = 0) -> Sequence:
        return make_sequence(
            tokens,
            output=output,
            name=str(number),
            arrival=number,
            groups=len(self._engine.layout.groups),
        )

    def run(self, *sequences: Sequence, offer: Callable[[Sequence], None] = lambda _: None) -> None:
        for sequence in sequences:
            self.scheduler.add(sequence)
        while any(s.finish_reason is None for s in sequences):
            self.step(offer)

    def step(self, offer: Callable[[Sequence], None] = lambda _: None) -> None:
        plan = self.scheduler.schedule(0.0)
        assert plan is not None
        assert self.scheduler.check(plan) == []
        result = self.scheduler.commit(plan, self._engine.execute(plan.step), self._sample, 0.0)
        if result.moves.size:
            self._engine.execute(build_moves(result.moves))
        for advance in result.advances:
            offer(advance.sequence)

    def _sample(self, row: Float32, sequence: Sequence, position: int) -> int:
        expected = self._reference.logits(sequence.tokens[: position + 1])[-1]
        assert np.abs(row - expected).max() <= 1e-4 * np.abs(expected).max()
        self.compared += 1
        return int(expected.argmax())


def prompt(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(3, VOCAB, count).tolist()
    return tokens


def greedy(reference: Reference, tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(reference.logits(tokens)[-1].argmax()))
    return tokens


def test_chunks_batches_and_prefix_hits(engine: Engine, reference: Reference) -> None:
    checked = Checked(engine, reference, step_tokens=50)
    prompts = [prompt(n, n) for n in (3, 64, 131, 200)]
    cold = [checked.sequence(p, 6, i) for i, p in enumerate(prompts)]
    checked.run(*cold)
    warm = checked.sequence(cold[3].tokens + prompt(30, 9), 6, 4)
    checked.run(warm)
    assert warm.cached is not None
    assert warm.cached.device == 192
    for sequence, tokens in zip(cold, prompts, strict=True):
        assert sequence.tokens == greedy(reference, tokens, 6)
    assert checked.compared == 5 * 6


def test_preemption_and_recomputation(engine: Engine, reference: Reference) -> None:
    checked = Checked(engine, reference, pages=4)
    first, second = (checked.sequence(prompt(60, n), 80, n) for n in (0, 1))
    preempted = False

    def watch(_: Sequence) -> None:
        nonlocal preempted
        preempted |= second.state is State.WAITING

    checked.run(first, second, offer=watch)
    assert preempted
    assert second.tokens == greedy(reference, prompt(60, 1), 80)
    assert checked.pool.used == 0


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_drafts_are_verified_without_a_trace(engine: Engine, reference: Reference, tree: bool) -> None:
    """Right and wrong drafts, at and across page borders."""
    checked = Checked(engine, reference)
    tokens = prompt(50)
    answer = greedy(reference, tokens, 30)
    sequence = checked.sequence(tokens, 30)

    def draft(s: Sequence) -> None:
        done = len(s.tokens)
        a, b, c = [*answer[done : done + 3], 0, 0, 0][:3]
        if tree:
            # A wrong branch before the right one, so that what is accepted has to be moved.
            offered = TokenTree(tokens=[(a + 1) % VOCAB, a, 7, b, c], parents=[-1, -1, 1, 1, 3])
        else:
            offered = TokenTree(tokens=[a, b, (c + done) % VOCAB], parents=[-1, 0, 1])
        checked.scheduler.offer(s, done, offered)

    checked.run(sequence, offer=draft)
    assert sequence.tokens == answer
    assert sequence.accepted >= 15

"""Sequences under a grammar in the scheduler: exact steps, and the same tokens whatever is drafted."""

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import IntegrityError, InternalError, InvalidRequest
from paceline.contracts.frames import Logprobs
from paceline.contracts.messages import Sampling, TokenTree
from paceline.engine.masks import Constraint
from paceline.engine.runner import StepRunner
from paceline.engine.sampling import sample
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence, State
from paceline.engine.step import Float32, Int32
from tests.builders import make_scheduler, make_sequence
from tests.unit.engine.scripted import Scripted, Sentences, Unforced, finish, turn

GREEDY = Sampling(max_tokens=50, temperature=0.0)


def constrained(
    constraint: Constraint, *, first: int = 1, sampling: Sampling = GREEDY, **kwargs: object
) -> Sequence:
    sequence = make_sequence([first], output=100, sampling=sampling, **kwargs)  # type: ignore[arg-type]
    sequence.constraint = constraint
    return sequence


def started(*sequences: Sequence) -> tuple[Scheduler, StepRunner]:
    scheduler = make_scheduler()
    for sequence in sequences:
        scheduler.add(sequence)
    return scheduler, StepRunner(Scripted())  # type: ignore[arg-type]


def test_the_end_of_the_grammar_ends_the_answer_at_once() -> None:
    sequence = constrained(Unforced((8, 57, 400), (8, 9, 3)))
    scheduler, runner = started(sequence)
    results = [turn(scheduler, runner)[1].advances[0] for _ in range(3)]
    assert [advance.tokens for advance in results] == [(8,), (57,), (400,)]
    assert [advance.finish_reason for advance in results] == [None, None, "stop"]
    assert (scheduler.idle, scheduler.pool.used) == (True, 0)


def test_what_the_grammar_forces_is_verified_in_one_step() -> None:
    sequence = constrained(Sentences((20, 21, 22, 23), (20, 21, 22, 30, 31)))
    scheduler, runner = started(sequence)
    turn(scheduler, runner)
    plan, result = turn(scheduler, runner)
    assert plan.step.tokens.tolist() == [20, 21, 22]
    assert plan.step.parents.tolist() == [-1, 0, 1]
    assert result.advances[0].tokens[:2] == (21, 22)
    finish(scheduler, runner, sequence)
    assert tuple(sequence.tokens[1:]) in ((20, 21, 22, 23), (20, 21, 22, 30, 31))
    assert (sequence.drafted, sequence.accepted) == (3, 3) if sequence.tokens[-1] == 31 else (2, 2)


def test_a_batch_that_only_decodes_goes_on_with_the_same_arrays_and_masks() -> None:
    engine = Scripted()
    runner = StepRunner(engine)  # type: ignore[arg-type]
    scheduler = make_scheduler()
    held = constrained(Unforced(tuple(range(300, 310))), name="held")
    free = make_sequence([2], output=20, name="free")
    for sequence in (free, held):
        scheduler.add(sequence)
    plans = [turn(scheduler, runner)[0] for _ in range(5)]
    assert plans[1] is plans[2] is plans[4]
    masks = engine.masks[1]
    assert masks is not None
    assert masks is engine.masks[4]
    assert masks.rows == [1]


def test_a_first_token_from_elsewhere_is_taken_and_a_forbidden_one_refused() -> None:
    scheduler = make_scheduler()
    good, bad = (constrained(Sentences((4, 5, 6)), remote=True, name=name) for name in ("good", "bad"))
    for sequence in (good, bad):
        scheduler.add(sequence)
    scheduler.schedule(0.0)
    scheduler.join(good, 4)
    with pytest.raises(IntegrityError, match="forbids token 3"):
        scheduler.join(bad, 3)
    assert bad.state is State.FILLING
    assert bad.tokens == [1]
    plan, result = turn(scheduler, StepRunner(Scripted()))  # type: ignore[arg-type]
    assert plan.step.tokens.tolist() == [4, 5, 6]
    assert (result.advances[0].tokens, result.advances[0].finish_reason) == ((5, 6), "stop")


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    sentences = [(*range(200, 270), i) for i in (1, 2)]
    scheduler = make_scheduler(pages=3)
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    first = constrained(Unforced(*sentences), name="first", arrival=0.0)
    second = constrained(Unforced(*sentences), name="second", arrival=1.0, first=2)
    for sequence in (first, second):
        scheduler.add(sequence)
    preempted = False
    while second.finish_reason is None:
        turn(scheduler, runner)
        preempted |= second.state is State.WAITING
    assert preempted
    for sequence in (first, second):
        assert tuple(sequence.tokens[1:]) in sentences
        assert sequence.finish_reason == "stop"


def test_a_grammar_that_cannot_go_on_is_the_requests_own_fault() -> None:
    broken, other = constrained(Sentences((1, 2), error="too many states")), make_sequence([2])
    stuck = constrained(Sentences())
    scheduler, runner = started(broken, other, stuck)
    _, result = turn(scheduler, runner)
    errors = {failure.sequence: failure.error for failure in result.failures}
    assert isinstance(errors[broken], InvalidRequest)
    assert "too many states" in errors[broken].message
    assert isinstance(errors[stuck], InternalError)
    assert [advance.sequence for advance in result.advances] == [other]


class EndInside(Sentences):
    """Asks for token 7, which ends answers, and does not take it: as llguidance does."""

    def take(self, token: int) -> bool:
        return token != 7 and super().take(token)


def test_a_grammar_that_goes_on_behind_an_end_is_the_requests_own_fault() -> None:
    inside, other = constrained(EndInside((5, 7, 6))), make_sequence([2])
    scheduler, runner = started(inside, other)
    turn(scheduler, runner)
    _, result = turn(scheduler, runner)
    (failure,) = result.failures
    assert failure.sequence is inside
    assert isinstance(failure.error, InvalidRequest)
    assert "token 7, which ends an answer" in failure.error.message
    assert [advance.sequence for advance in result.advances] == [other]


def draw(logits: Float32, sampling: Sampling, position: int, mask: Int32 | None) -> int:
    return sample(logits, sampling, position, None, mask)


sentences = st.lists(
    st.lists(st.integers(0, 5), min_size=9, max_size=9).map(tuple), min_size=1, max_size=12, unique=True
)


@given(
    sentences,
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.sampled_from([None, 2]),
)
@settings(max_examples=60, deadline=None)
def test_no_draft_changes_a_token(
    sentences: list[tuple[int, ...]],
    chance: random.Random,
    temperature: float,
    draws: bool,
    logprobs: int | None,
) -> None:
    """Whoever draws, with forced tokens and any trees, beside others and alone."""
    sampling = Sampling(max_tokens=50, temperature=temperature, seed=7, logprobs=logprobs)
    new = partial(constrained, sampling=sampling)
    plain = new(Unforced(*sentences))
    scheduler, runner = started(plain)
    alone: list[Logprobs] = []
    while plain.finish_reason is None:
        alone += turn(scheduler, runner)[1].advances[0].logprobs

    engine = Scripted(draw if draws else None)
    runner = StepRunner(engine)  # type: ignore[arg-type]
    scheduler = make_scheduler()
    drafted = new(Sentences(*sentences), name="drafted")
    other = make_sequence([3], output=20, name="other")
    for sequence in (other, drafted):
        scheduler.add(sequence)
    found: list[Logprobs] = []
    while drafted.finish_reason is None:
        if drafted.state is State.RUNNING and chance.random() < 0.7:
            tokens = [chance.choice([*range(6), 999]) for _ in range(8)]
            answer = plain.tokens[len(drafted.tokens) :][:4]
            tree = TokenTree(
                tokens=[*answer, *tokens],
                parents=[
                    *range(-1, len(answer) - 1),
                    *(chance.randint(-1, len(answer) + i - 1) for i in range(8)),
                ],
            )
            scheduler.offer(drafted, len(drafted.tokens), tree)
        _, result = turn(scheduler, runner)
        found += [
            one for advance in result.advances if advance.sequence is drafted for one in advance.logprobs
        ]
    assert drafted.tokens == plain.tokens
    assert tuple(drafted.tokens[1:]) in sentences
    assert drafted.finish_reason == "stop"
    assert found == alone
    assert len(found) == (0 if logprobs is None else 9)

"""Log probabilities by exact values, of answers and of prompts."""

import math

import msgspec
import numpy as np
import pytest

from paceline.contracts.frames import Logprobs
from paceline.contracts.messages import CachedTokens, Sampling
from paceline.engine.logprobs import LEAST, logprobs_of
from paceline.engine.runner import StepRunner
from paceline.engine.sequence import Sequence
from paceline.engine.step import Float32
from tests.builders import make_scheduler, make_sequence
from tests.unit.engine.scripted import Scripted, Unforced, finish, row_of, turn


def of(*probabilities: float) -> Float32:
    with np.errstate(divide="ignore"):
        logits: Float32 = np.log(np.array(probabilities)).astype(np.float32) + np.float32(3.0)
    return logits


def approximate(found: Logprobs) -> tuple[float, list[tuple[int, float]]]:
    return round(math.exp(found.logprob), 5), [(i, round(math.exp(p), 5)) for i, p in found.top]


def test_probabilities_are_those_of_the_softmax() -> None:
    logits = of(0.1, 0.2, 0.4, 0.3)
    assert approximate(logprobs_of(logits, 0, 2)) == (0.1, [(2, 0.4), (3, 0.3)])
    assert logprobs_of(logits, 0, 0).top == ()
    assert [i for i, _ in logprobs_of(logits, 0, 20).top] == [2, 3, 1, 0]


def test_of_equally_likely_tokens_the_smallest_ids_come_first() -> None:
    logits = of(0.1, 0.2, 0.1, 0.2, 0.2, 0.2)
    assert [i for i, _ in logprobs_of(logits, 0, 3).top] == [1, 3, 4]
    assert [i for i, _ in logprobs_of(logits, 0, 5).top] == [1, 3, 4, 5, 0]


def test_values_are_float32_and_finite() -> None:
    found = logprobs_of(of(0.0, 0.3, 0.7), 0, 3)
    assert found.logprob == LEAST
    assert found.top[2] == (0, LEAST)
    assert found.top[0][1] == float(np.float32(found.top[0][1]))


def test_a_large_vocabulary_is_added_up_without_loss() -> None:
    logits = np.random.default_rng(0).normal(0, 3, 200_000).astype(np.float32)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    found = logprobs_of(logits, 17, 1)
    assert found.logprob == pytest.approx(exact[17], rel=1e-6)
    ((likeliest, best),) = found.top
    assert likeliest == int(exact.argmax())
    assert best == pytest.approx(exact.max(), rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_there_are_none_without_a_distribution(bad: float) -> None:
    logits = of(0.5, 0.5)
    logits[1] = bad
    with pytest.raises(ValueError, match="the largest logit is"):
        logprobs_of(logits, 0, 1)


def sequence_of(prompt: list[int], name: str = "r", **logprobs: int) -> Sequence:
    sampling = msgspec.structs.replace(Sampling(max_tokens=4, temperature=0.0), **logprobs)
    return make_sequence(prompt, output=4, name=name, sampling=sampling)


def test_tokens_come_with_the_models_own_distribution() -> None:
    """Whatever bias, penalty or grammar they were chosen under."""
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    scheduler = make_scheduler()
    biased = make_sequence(
        [1], output=2, sampling=Sampling(max_tokens=2, temperature=0.7, logit_bias={5: 100.0}, logprobs=3)
    )
    held = sequence_of([1], "held", logprobs=1)
    held.constraint = Unforced((77, 78, 79))
    plain = sequence_of([1], "plain")
    for sequence in (biased, held, plain):
        scheduler.add(sequence)
    _, result = turn(scheduler, runner)
    logits = row_of(1, 0)
    assert [advance.tokens for advance in result.advances] == [(5,), (77,), (int(logits.argmax()),)]
    assert [advance.logprobs for advance in result.advances] == [
        (logprobs_of(logits, 5, 3),),
        (logprobs_of(logits, 77, 1),),
        (),
    ]


@pytest.mark.parametrize("step_tokens", [5, 100])
def test_a_prompt_is_scored_chunk_by_chunk(step_tokens: int) -> None:
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    scheduler = make_scheduler(step_tokens=step_tokens)
    prompt = list(range(100, 180))
    first, scored = sequence_of(prompt, "first"), sequence_of(prompt, "scored", prompt_logprobs=2)
    scheduler.add(first)
    finish(scheduler, runner, first)
    scheduler.add(scored)
    rows = []
    while not scored.decoding:
        plan, _ = turn(scheduler, runner)
        rows.append(len(plan.step.tokens))
    assert rows == ([5] * 16 if step_tokens == 5 else [32, 32, 16])
    assert scored.prompt_logprobs == [logprobs_of(row_of(prompt[i], i), prompt[i + 1], 2) for i in range(79)]
    assert scored.cached == CachedTokens()
    finish(scheduler, runner, scored)
    assert scored.tokens == first.tokens
    assert len(scored.prompt_logprobs) == 79


def test_a_prompt_that_is_preempted_or_goes_on_behind_an_answer_is_scored_once() -> None:
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    scheduler = make_scheduler()
    scored = sequence_of(list(range(60)), prompt_logprobs=0)
    scored.prompt_tokens = 50  # the rest was said before
    scheduler.add(scored)
    turn(scheduler, runner)
    assert len(scored.prompt_logprobs) == 32
    scheduler._preempt(scored)
    plan, _ = turn(scheduler, runner)
    assert plan.step.logit_rows.tolist() == []
    plan, _ = turn(scheduler, runner)
    assert plan.step.logit_rows.tolist() == [*range(17), 27]
    assert scored.prompt_logprobs == [logprobs_of(row_of(i, i), i + 1, 0) for i in range(49)]


def test_a_step_that_runs_again_scores_again() -> None:
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    scheduler = make_scheduler()
    scored = sequence_of(list(range(10)), prompt_logprobs=0)
    scheduler.add(scored)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    runner.run(plan)
    runner.run(plan)
    assert len(scored.prompt_logprobs) == 9


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    runner = StepRunner(Scripted())  # type: ignore[arg-type]
    scheduler = make_scheduler()
    scored = sequence_of([1], prompt_logprobs=1)
    scheduler.add(scored)
    finish(scheduler, runner, scored)
    assert scored.prompt_logprobs == []

"""Each filter by exact values, then the distribution as a whole."""

from typing import Any

import numpy as np
import pytest

from paceline.contracts.messages import Sampling
from paceline.engine.sampling import adjustments_for, sample
from paceline.engine.step import Float32

LOGITS = np.log(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32))


def draw(setting: Sampling, position: int = 0, prompt: list[int] | None = None, output: list[int] | None = None,
         logits: Float32 = LOGITS) -> int:  # fmt: skip
    return sample(logits, setting, position, adjustments_for(setting, prompt or [], output or []))


def counts(**sampling: Any) -> list[float]:
    """Frequency of each token over ten seeds and a thousand positions."""
    settings = [Sampling(max_tokens=1, seed=seed, **sampling) for seed in range(10)]
    tokens = [draw(setting, position) for setting in settings for position in range(1000)]
    return [tokens.count(t) / len(tokens) for t in range(4)]


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = np.array([1.0, 3.0, 3.0, 2.0], dtype=np.float32)
    assert sample(logits, Sampling(max_tokens=1, temperature=0.0), 0, None) == 1


def test_sampling_follows_the_distribution() -> None:
    assert counts() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)


def test_temperature_sharpens() -> None:
    squares = np.array([0.01, 0.04, 0.09, 0.16])
    assert counts(temperature=0.5) == pytest.approx(list(squares / squares.sum()), abs=0.02)


def test_top_k_keeps_the_likeliest() -> None:
    assert counts(top_k=2) == pytest.approx([0, 0, 3 / 7, 4 / 7], abs=0.02)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert counts(top_p=0.7) == pytest.approx([0, 0, 3 / 7, 4 / 7], abs=0.02)
    assert counts(top_p=0.71) == pytest.approx([0, 2 / 9, 3 / 9, 4 / 9], abs=0.02)
    assert counts(top_p=1e-9) == [0, 0, 0, 1]


def test_min_p_is_relative_to_the_likeliest() -> None:
    assert counts(min_p=0.51) == pytest.approx([0, 0, 3 / 7, 4 / 7], abs=0.02)


def test_top_k_comes_before_top_p() -> None:
    # Of the two likeliest, 0.4 / 0.7 is below 0.6, so that both remain.
    assert counts(top_k=2, top_p=0.6) == pytest.approx([0, 0, 3 / 7, 4 / 7], abs=0.02)


def test_logit_bias_bans_and_forces() -> None:
    assert draw(Sampling(max_tokens=1, temperature=0.0, logit_bias={0: 100.0})) == 0
    assert counts(logit_bias={3: -100.0})[3] == 0


def test_penalties_follow_the_formulas() -> None:
    logits = np.array([2.0, -2.0, 1.9, 0.0], dtype=np.float32)
    repetition = Sampling(max_tokens=1, temperature=0.0, repetition_penalty=2.0)
    assert draw(repetition, prompt=[0], output=[1], logits=logits) == 2
    frequency = Sampling(max_tokens=1, temperature=0.0, frequency_penalty=0.06)
    assert draw(frequency, prompt=[0, 0], output=[0], logits=logits) == 0  # the prompt does not count
    assert draw(frequency, output=[0, 0], logits=logits) == 2
    presence = Sampling(max_tokens=1, temperature=0.0, presence_penalty=0.06)
    assert draw(presence, output=[0, 0], logits=logits) == 0


def test_plain_sampling_needs_no_adjustments() -> None:
    assert adjustments_for(Sampling(max_tokens=1, temperature=0.5, top_p=0.5), [1], [2]) is None


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-5, 1e300])
def test_extreme_temperatures_give_a_token_of_the_vocabulary(temperature: float) -> None:
    token = draw(Sampling(max_tokens=1, temperature=temperature))
    assert token == 3 if temperature < 1 else 0 <= token < 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_without_a_distribution_are_an_error_and_no_token(temperature: float, bad: float) -> None:
    logits = np.array([0.0, bad, 1.0, 2.0], dtype=np.float32)
    with pytest.raises(ValueError, match="largest logit"):
        draw(Sampling(max_tokens=1, temperature=temperature), logits=logits)


def test_a_token_depends_on_seed_and_position_only() -> None:
    setting = Sampling(max_tokens=1, seed=1)
    first = [sample(LOGITS, setting, position, None) for position in range(50)]
    assert first == [sample(LOGITS.copy(), setting, position, None) for position in range(50)]
    assert first != [sample(LOGITS, Sampling(max_tokens=1, seed=2), position, None) for position in range(50)]
    # Golden: fixed for ever, whatever engine or batch.
    assert first[:10] == [3, 3, 1, 3, 1, 1, 2, 2, 3, 1]


def test_the_logits_are_left_alone() -> None:
    before = LOGITS.copy()
    sample(LOGITS, Sampling(max_tokens=1, min_p=0.5, logit_bias={1: 3.0}), 0, None)
    assert (before == LOGITS).all()

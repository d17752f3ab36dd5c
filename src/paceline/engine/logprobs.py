"""Log probabilities of tokens, in the model's own distribution: before grammar, biases, penalties and temperature."""

import math

import numpy as np

from paceline.contracts.frames import Logprobs
from paceline.engine.step import Float32

LEAST = -9999.0
"""What stands for anything less likely, as in OpenAI's API: infinities are no JSON."""


def logprobs_of(logits: Float32, token: int, count: int) -> Logprobs:
    """Of `token`, and of the `count` likeliest tokens; of equally likely ones those with the smallest ids.

    logits: [vocab]

    Raises `ValueError` when they hold no distribution: NaN, or infinity.
    """
    best = logits.max()
    if not np.isfinite(best):
        raise ValueError(f"the largest logit is {best}")
    # Terms are rounded to float32, which has them ten times as fast, and added up without further loss.
    whole = float(best) + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    ids = _likeliest(logits, min(count, len(logits)))
    top = tuple([(i, _finite(float(logits[i]) - whole)) for i in ids])
    return Logprobs(_finite(float(logits[token]) - whole), top)


def _likeliest(logits: Float32, count: int) -> list[int]:
    if count == 0:
        return []
    floor = np.partition(logits, -count)[-count]
    candidates = np.flatnonzero(logits >= floor)
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    return [int(i) for i in candidates[order]]


def _finite(value: float) -> float:
    """In float32, as it travels."""
    return float(np.float32(value)) if value > LEAST else LEAST

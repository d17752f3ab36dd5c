"""From a row of logits to a token, as vLLM orders it: grammar, logit_bias, penalties, temperature, min_p, top_k, top_p.

The random number of a token is `philox.uniform(seed, position)`, so that one request gives one answer wherever and
beside whomever it runs. It also makes speculation exact without a rejection rule: a proposal from an index is a point
mass, for which accepting a drafted token iff it equals the token sampled at its position is the same distribution as
Leviathan et al. (2023) and, here, the very same tokens as without a draft.
"""

from collections import Counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.messages import Sampling
from paceline.engine.masks import allowed
from paceline.engine.philox import uniform
from paceline.engine.step import Float32, Int32

Float64: TypeAlias = npt.NDArray[np.float64]


class Adjustments:
    """What one sequence does to its logits before temperature: logit_bias, then the penalties for what was said."""

    def __init__(self, sampling: Sampling, prompt: list[int], output: list[int]) -> None:
        self._sampling = sampling
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), dtype=np.int64)
        self._biases = np.fromiter(sampling.logit_bias.values(), dtype=np.float64)
        self._prompt = np.unique(np.asarray(prompt, dtype=np.int64))
        self._output = Counter(output)

    def add(self, token: int) -> None:
        """`token` is part of the output now."""
        self._output[token] += 1

    def apply(self, scores: Float64) -> None:
        """Change `scores` [vocab] in place. Repetition counts prompt and output, presence and frequency the output."""
        sampling = self._sampling
        scores[self._bias_ids] += self._biases
        ids = np.fromiter(self._output.keys(), dtype=np.int64, count=len(self._output))
        if sampling.repetition_penalty != 1.0:
            seen = np.union1d(self._prompt, ids)
            values = scores[seen]
            penalty = sampling.repetition_penalty
            scores[seen] = np.where(values > 0, values / penalty, values * penalty)
        if len(ids):
            counts = np.fromiter(self._output.values(), dtype=np.float64, count=len(self._output))
            scores[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def adjustments_for(sampling: Sampling, prompt: list[int], output: list[int]) -> Adjustments | None:
    """None when the logits are taken as they are."""
    plain = (
        not sampling.logit_bias
        and sampling.presence_penalty == 0.0
        and sampling.frequency_penalty == 0.0
        and sampling.repetition_penalty == 1.0
    )
    return None if plain else Adjustments(sampling, prompt, output)


def sample(
    logits: Float32,
    sampling: Sampling,
    position: int,
    adjustments: Adjustments | None,
    mask: Int32 | None = None,
) -> int:
    """The token after `position`, which counts from the start of the prompt; of those that `mask` allows.

    `logits` float32 [vocab] is not changed. Raises `ValueError` when they hold no distribution: NaN, or infinity.
    """
    if mask is not None:
        logits = np.where(allowed(mask, len(logits)), logits, np.float32(-np.inf))
    if sampling.temperature == 0.0 and adjustments is None:
        return _argmax(logits)
    scores = logits.astype(np.float64)
    if adjustments is not None:
        adjustments.apply(scores)
    likeliest = _argmax(scores)
    if sampling.temperature == 0.0:
        return likeliest
    # The maximum goes first: dividing by a tiny temperature would make infinities of it.
    scores -= scores[likeliest]
    with np.errstate(over="ignore"):  # then the rest is infinitely less likely
        scores /= sampling.temperature
    return _draw(_filtered(scores, sampling), uniform(sampling.seed, position))


def _argmax(scores: npt.NDArray[Any]) -> int:
    # Where there is a NaN, it counts as the maximum.
    likeliest = int(scores.argmax())
    if not np.isfinite(scores[likeliest]):
        raise ValueError(f"the largest logit is {scores[likeliest]}")
    return likeliest


def _filtered(scores: Float64, sampling: Sampling) -> Float64:
    """Probabilities, not normalized, with everything outside min_p, top_k and top_p at zero. The best score is 0."""
    weights: Float64 = np.exp(scores)
    if sampling.min_p > 0.0:
        # The likeliest token has weight 1, so that min_p compares with the weights as they are.
        weights[weights < sampling.min_p] = 0.0
    if 0 < sampling.top_k < len(weights):
        floor = np.partition(weights, -sampling.top_k)[-sampling.top_k]
        weights[weights < floor] = 0.0
    if sampling.top_p < 1.0:
        kept = np.sort(weights[weights > 0.0])[::-1]
        mass = np.cumsum(kept)
        # The smallest set that reaches top_p, which holds at least the likeliest token.
        last = int(np.searchsorted(mass, sampling.top_p * mass[-1]))
        weights[weights < kept[min(last, len(kept) - 1)]] = 0.0
    return weights


def _draw(weights: Float64, u: float) -> int:
    """Inverse of the cumulative distribution in order of token ids; never a token of weight zero."""
    mass = np.cumsum(weights)
    return int(np.searchsorted(mass, u * mass[-1], side="right"))

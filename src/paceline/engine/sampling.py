"""From a row of logits to a token, as vLLM orders it: logit_bias, penalties, temperature, min_p, top_k, top_p.

The random number of a token is `philox.uniform(seed, position)`, so that one request gives one answer wherever and
beside whomever it runs. It also makes speculation exact without a rejection rule: a proposal from an index is a point
mass, for which accepting a drafted token iff it equals the token sampled at its position is the same distribution as
Leviathan et al. (2023) and, here, the very same tokens as without a draft.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

from paceline.contracts.messages import Sampling
from paceline.engine.philox import uniform
from paceline.engine.step import Float32


class History:
    """How often each token stands in the prompt and in the output, for the penalties."""

    def __init__(self, prompt: list[int], output: list[int]) -> None:
        self._prompt = np.unique(np.asarray(prompt, dtype=np.int64))
        self._output = Counter(output)

    def add(self, token: int) -> None:
        self._output[token] += 1

    def penalize(self, logits: npt.NDArray[np.float64], sampling: Sampling) -> None:
        """Change `logits` in place: repetition over prompt and output, presence and frequency over the output."""
        ids = np.fromiter(self._output.keys(), dtype=np.int64, count=len(self._output))
        if sampling.repetition_penalty != 1.0:
            seen = np.union1d(self._prompt, ids)
            values = logits[seen]
            penalty = sampling.repetition_penalty
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if len(ids):
            counts = np.fromiter(self._output.values(), dtype=np.float64, count=len(self._output))
            logits[ids] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def needs_history(sampling: Sampling) -> bool:
    """Whether the token depends on the ones before it by more than the logits."""
    return (
        sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.repetition_penalty != 1.0
    )


def sample(logits: Float32, sampling: Sampling, position: int, history: History | None) -> int:
    """The token after `position`.

    `logits` float32 [vocab] is not changed. `position` counts from the start of the prompt. `history` is wanted when
    `needs_history`.
    """
    greedy = sampling.temperature == 0.0
    if greedy and history is None and not sampling.logit_bias:
        return int(logits.argmax())
    scores = logits.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    if history is not None:
        history.penalize(scores, sampling)
    if greedy:
        return int(scores.argmax())
    scores /= sampling.temperature
    return _draw(_filtered(scores, sampling), uniform(sampling.seed, position))


def _filtered(scores: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.float64]:
    """Probabilities, not normalized, with everything outside min_p, top_k and top_p at zero."""
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
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


def _draw(weights: npt.NDArray[np.float64], u: float) -> int:
    """Inverse of the cumulative distribution in order of token ids; never a token of weight zero."""
    mass = np.cumsum(weights)
    return int(np.searchsorted(mass, u * mass[-1], side="right"))

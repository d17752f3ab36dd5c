"""A variant's predictions of a text against those of the reference: every token's, and whole distributions of some."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from bench.paired import Float64
from bench.windows import Prediction, predict, scored
from paceline.engine.interface import Engine
from paceline.engine.step import Int32

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextScores:
    """Of W windows with N scored tokens each: their log-probabilities [W, N] and the likeliest tokens instead [W, N],
    and of the first windows the Kullback-Leibler divergence from the reference at each token, in nats [w, N]."""

    log_probabilities: Float64
    best: Int64
    divergences: Float64


class TextReference:
    """The reference's predictions; `path` holds the distributions of the first `whole` windows, 4 bytes for each token
    of the vocabulary at each scored token."""

    def __init__(self, engine: Engine, windows: Int32, whole: int, path: Path) -> None:
        count, length = windows.shape
        shape = (min(whole, count), scored(length), engine.vocab)
        self._windows = windows
        self._distributions = np.memmap(path, np.float32, "w+", shape=shape)
        self.scores = _empty(windows, len(self._distributions))
        for at, found in _run(engine, windows, self.scores):
            kept = self._distributions[at.windows, at.columns]
            kept[:] = found[: len(kept)].numpy()

    def run(self, engine: Engine) -> TextScores:
        """The scores of another engine on the same windows."""
        scores = _empty(self._windows, len(self._distributions))
        for at, found in _run(engine, self._windows, scores):
            kept = self._distributions[at.windows, at.columns]
            if len(kept):
                expected = torch.from_numpy(np.asarray(kept))
                divergence = torch.sum(expected.exp() * (expected - found[: len(kept)]), -1)
                scores.divergences[at.windows, at.columns] = divergence.numpy()
        return scores


def _empty(windows: Int32, whole: int) -> TextScores:
    count, columns = len(windows), scored(windows.shape[1])
    return TextScores(
        np.zeros((count, columns)), np.zeros((count, columns), dtype=np.int64), np.zeros((whole, columns))
    )


def _run(engine: Engine, windows: Int32, scores: TextScores) -> Iterator[tuple[Prediction, torch.Tensor]]:
    """Each prediction with its log-probabilities [n, rows, vocab], once those that the tokens have are in `scores`."""
    for at in predict(engine, windows):
        found = torch.log_softmax(torch.from_numpy(at.logits), -1)
        following = torch.from_numpy(at.following).long()[..., None]
        scores.log_probabilities[at.windows, at.columns] = found.gather(-1, following)[..., 0].numpy()
        scores.best[at.windows, at.columns] = found.argmax(-1).numpy()
        yield at, found

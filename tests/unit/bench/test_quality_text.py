from pathlib import Path

import numpy as np
import pytest

from bench.quality_text import TextReference
from bench.windows import BATCH, CHUNK, cut, predict, scored
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.fake import FakeEngine
from paceline.engine.step import Float32, Int32, Step

VOCAB = 256
LENGTH = 3 * CHUNK
WINDOWS = np.random.default_rng(0).integers(1, VOCAB, (BATCH + 2, LENGTH)).astype(np.int32)


class Doubtful(FakeEngine):
    """The same order of tokens, less sure of it."""

    def execute(self, step: Step) -> Float32:
        return super().execute(step) * np.float32(0.5)


def bound(engine: FakeEngine) -> FakeEngine:
    pages = BATCH * LENGTH // PAGE_TOKENS
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    return engine


def test_every_token_behind_the_first_chunk_is_predicted_once() -> None:
    following: Int32 = np.zeros((len(WINDOWS), scored(LENGTH)), dtype=np.int32)
    best = np.zeros_like(following)
    for at in predict(bound(FakeEngine(vocab=VOCAB)), WINDOWS):
        assert not following[at.windows, at.columns].any()
        following[at.windows, at.columns] = at.following
        best[at.windows, at.columns] = at.logits.argmax(-1)
    assert (following == WINDOWS[:, CHUNK + 1 :]).all()
    for window, column in [(0, 0), (0, CHUNK - 1), (BATCH, CHUNK), (BATCH + 1, scored(LENGTH) - 1)]:
        prompt = WINDOWS[window, : CHUNK + column + 1].tolist()
        assert [best[window, column]] == FakeEngine(vocab=VOCAB).greedy(prompt, 1)


def test_the_reference_does_not_differ_from_itself(tmp_path: Path) -> None:
    reference = TextReference(bound(FakeEngine(vocab=VOCAB)), WINDOWS, BATCH + 1, tmp_path / "distributions")
    again = reference.run(bound(FakeEngine(vocab=VOCAB)))
    assert (again.log_probabilities == reference.scores.log_probabilities).all()
    assert (again.best == reference.scores.best).all()
    assert again.divergences.shape == (BATCH + 1, scored(LENGTH))
    assert not again.divergences.any()


def test_divergence_of_whole_distributions(tmp_path: Path) -> None:
    reference = TextReference(bound(FakeEngine(vocab=VOCAB)), WINDOWS, 2, tmp_path / "distributions")
    found = reference.run(bound(Doubtful(vocab=VOCAB)))
    assert (found.best == reference.scores.best).all()
    # The four likeliest tokens, one that ends answers and all others; where two of the four fall together it differs.
    logits = np.array([12, 11, 10.5, 10, -100] + [0] * (VOCAB - 5))
    p, q = (np.exp(x) / np.exp(x).sum() for x in (logits, logits / 2))
    expected = float((p * (np.log(p + 1e-300) - np.log(q)))[p > 0].sum())
    assert np.median(found.divergences) == pytest.approx(expected, rel=1e-4)
    assert (found.divergences > 0).all()


def test_windows_are_whole() -> None:
    assert cut(list(range(10)), 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut([1, 2], 4).shape == (0, 4)

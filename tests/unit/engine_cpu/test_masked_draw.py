"""Rows that are drawn natively obey masks; the others give out their logits as they are."""

import ctypes

import numpy as np
import pytest

from paceline.contracts.messages import Sampling
from paceline.engine.cpu.levels import Level
from paceline.engine.masks import Masks, allowed
from paceline.engine.sampling import sample
from paceline.engine.step import Float32, Int32
from tests.unit.engine_cpu.engines import start
from tests.unit.engine_cpu.native import LEVELS, SHIMS, build
from tests.unit.engine_torch.models import VOCAB, Reference
from tests.unit.engine_torch.steps import Rows, make_step

WORDS = -(-VOCAB // 32)


def random_mask(seed: int, vocab: int, share: float) -> Int32:
    bits = np.random.default_rng(seed).random(-(-vocab // 32) * 32) < share
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
def test_logits_of_other_tokens_become_impossible(level: Level, vocab: int, share: float) -> None:
    library = build(SHIMS / "draw.cpp", level)
    logits = np.random.default_rng(vocab).normal(0, 3, vocab + 1).astype(np.float32)
    mask = random_mask(vocab, vocab, share)
    expected = np.where(allowed(mask, vocab), logits[:-1], -np.inf)
    behind = logits[-1]
    library.exclude(ctypes.c_void_p(logits.ctypes.data), vocab, ctypes.c_void_p(mask.ctypes.data))
    assert np.array_equal(logits[:-1], expected)
    assert logits[-1] == behind


def test_rows_with_and_without_masks_share_a_step(llama: Reference, level: Level) -> None:
    bound = start(llama.files, level)
    tokens = [5, 9, 77, 30, 12, 8, 100, 3]
    step = make_step(Rows(tokens, 0, [1]))
    logits: Float32 = bound.engine.execute(step)
    samplings: list[Sampling | None] = [
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, seed=3),
        Sampling(max_tokens=1, seed=3),
        Sampling(max_tokens=1, seed=4, top_k=3, top_p=0.8),
        None,
        None,
        Sampling(max_tokens=1, temperature=0.0),
    ]
    rows = [0, 2, 4, 5, 7]
    bits = np.stack([*(random_mask(row, VOCAB, 0.1) for row in rows[:-1]), np.zeros(WORDS, dtype=np.int32)])
    masks = Masks(bits, rows)
    for _ in range(2):
        found = bound.engine.sample(step, samplings, masks)
        for row, sampling in enumerate(samplings):
            mask = bits[rows.index(row)] if row in rows else None
            if sampling is None:
                assert np.array_equal(found[row], logits[row])
            elif row == 7:
                assert found[row] == -1  # nothing may come
            else:
                assert found[row] == sample(logits[row], sampling, row, None, mask)
        # The same objects with other bits, as in a batch that only decodes.
        bits[:4] = [random_mask(99 + row, VOCAB, 0.1) for row in rows[:-1]]
    free = bound.engine.sample(step, samplings)
    assert free[0] == int(logits[0].argmax())

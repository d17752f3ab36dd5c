"""Tokens drawn where logits lie obey masks; the others' logits are given out as they are."""

import numpy as np
import torch

from paceline.contracts.messages import Sampling
from paceline.engine.masks import Masks
from paceline.engine.sampling import sample
from paceline.engine.torch.drawing import draw

VOCAB = 70


def test_masked_rows_give_tokens_that_are_allowed() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(0, 3, (6, VOCAB)).astype(np.float32)
    samplings: list[Sampling | None] = [
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, seed=5),
        None,
        Sampling(max_tokens=1, seed=6, top_k=5, top_p=0.9),
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, temperature=0.0),
    ]
    bits = random.integers(-(2**31), 2**31, (5, 3), dtype=np.int32)
    bits[4] = 0
    rows = [0, 1, 2, 3, 5]
    positions = np.arange(10, 16, dtype=np.int32)
    found = draw(torch.from_numpy(logits.copy()), positions, samplings, Masks(bits, rows))
    for row, sampling in enumerate(samplings):
        mask = bits[rows.index(row)] if row in rows else None
        if sampling is None:
            assert np.array_equal(found[row], logits[row])
        elif row == 5:
            assert found[row] == -1
        else:
            assert found[row] == sample(logits[row], sampling, 10 + row, None, mask)

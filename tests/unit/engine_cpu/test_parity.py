"""Logits are transformers' at every level, however a prompt is cut, batched and paged; and do not depend on that."""

from itertools import pairwise

import numpy as np
import pytest

from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.weights import Weights
from paceline.engine.layout import KV_DTYPES, KvDtype
from tests.unit.engine_cpu.engines import start
from tests.unit.engine_torch.models import Reference
from tests.unit.engine_torch.steps import Rows
from tests.unit.engine_torch.test_parity import (
    prompt,
    test_chunks_over_shuffled_pages,
    test_decode_token_by_token,
    test_draft_tree,
    test_mixed_batch,
    test_only_wanted_rows,
    test_whole_prompt,
)

__all__ = [
    "test_chunks_over_shuffled_pages",
    "test_decode_token_by_token",
    "test_draft_tree",
    "test_mixed_batch",
    "test_only_wanted_rows",
    "test_whole_prompt",
]


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
def test_a_row_does_not_depend_on_its_step(
    llama: Reference, level: Level, weights: Weights, kv_dtype: KvDtype
) -> None:
    """Bit for bit: alone or among others, in one chunk or many, by one thread or three."""
    tokens, other = prompt(140), prompt(90, seed=1)
    one = start(llama.files, level, weights=weights, kv_dtype=kv_dtype, threads=1)
    whole = one.run(Rows(tokens, 0, [1, 2, 3]))

    many = start(llama.files, level, weights=weights, kv_dtype=kv_dtype, threads=3)
    parts = [
        many.run(Rows(tokens[a:b], a, [9, 4, 7]), Rows(other[a // 2 : b // 2], a // 2, [5, 6]))[: b - a]
        for a, b in pairwise([0, 2, 9, 64, 66, 71, 128, 132, 140])
    ]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.isfinite(whole).all()

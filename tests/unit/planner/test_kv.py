"""Bytes of KV per token of published models, and how many tokens a pool holds."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.layout import KvDtype, plan_layout
from paceline.model.config import Chunk, Window
from paceline.planner.kv import KvCost, SpanCost, kv_cost
from paceline.planner.model import Model, find
from tests.unit.planner import shapes

LLAMA_31_8B = shapes.TINY | {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def cost(model: Model, dtype: KvDtype, tp: int = 1) -> KvCost:
    return kv_cost(model.config, plan_layout(model.config, dtype), range(len(model.config.layers)), tp)


@pytest.mark.parametrize(
    ("config", "bf16"),
    [
        (shapes.SMOLLM2_135M, 23_040),
        (LLAMA_31_8B, 131_072),
        (shapes.qwen3(28, 8), 114_688),
        (shapes.qwen3(36, 8), 147_456),
        (shapes.qwen3_moe(48, 4), 98_304),
        (shapes.qwen3_moe(94, 4), 192_512),
        (shapes.glm4_moe(92), 376_832),
        (shapes.glm4_moe(46), 188_416),
        (shapes.GLM_47_FLASH, 54_144),
    ],
)
def test_bytes_per_token_of_published_shapes(tmp_path: Path, config: dict[str, Any], bf16: int) -> None:
    model = shapes.read(tmp_path, config)
    assert cost(model, "bfloat16").token_bytes == bf16
    assert cost(model, "fp8_e4m3").token_bytes == bf16 // 2


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "rows"),
    [
        ("llama-3.3-70b", 327_680, 163_840, 80 * 16 * (128 + 4)),
        ("deepseek-v3", 70_272, 35_136, 40_016),
        ("kimi-k2.5", 70_272, 35_136, 40_016),
        ("kimi-k2.6", 70_272, 35_136, 40_016),
        ("glm-5.2", 89_856 + 5_376, 44_928 + 2_772, 51_168 + 2_772),
        ("llama-4-scout", 49_152, 24_576, 12 * 16 * (128 + 4)),
    ],
)
def test_bytes_per_token_of_shipped_shapes(name: str, bf16: int, fp8: int, rows: int) -> None:
    model = find(name)
    assert cost(model, "bfloat16").token_bytes == bf16
    assert cost(model, "fp8_e4m3").token_bytes == fp8
    assert cost(model, "fp8_per_token_head").token_bytes == rows


def test_layers_with_a_span_cost_until_it_is_full(tmp_path: Path) -> None:
    scout = cost(find("llama-4-scout"), "bfloat16")
    assert (scout.early_token_bytes, scout.capped_bytes) == (196_608, 36 * 4096 * 8192)
    oss = cost(shapes.read(tmp_path, shapes.GPT_OSS_120B), "bfloat16")
    assert (oss.early_token_bytes, oss.token_bytes) == (73_728, 36_864)
    assert oss.capped_bytes == 18 * 2048 * (128 + 64)  # a window may begin in the middle of a page


def test_kv_heads_are_shared_out_and_latents_are_not(tmp_path: Path) -> None:
    per_gpu = [cost(shapes.read(tmp_path, shapes.TINY), "bfloat16", tp).token_bytes for tp in (1, 2, 8)]
    assert per_gpu == [3 * 2 * 2 * 8 * 2, 3 * 2 * 8 * 2, 3 * 2 * 8 * 2]
    assert cost(find("glm-5.2"), "fp8_e4m3", 8).token_bytes == 47_700


def test_a_stage_holds_the_kv_of_its_layers() -> None:
    model = find("glm-5.2")
    layout = plan_layout(model.config, "bfloat16")
    # Layers 0, 1, 2, 6, 10, ... 74 have index keys: 12 of the first 39.
    first, second = (kv_cost(model.config, layout, layers, 1) for layers in (range(39), range(39, 78)))
    assert first.token_bytes == 39 * 576 * 2 + 12 * 128 * 2
    assert second.token_bytes == 39 * 576 * 2 + 9 * 128 * 2


def test_tokens_that_fit() -> None:
    plain = KvCost((SpanCost(None, 1, 100, None),))
    assert plain.tokens(64_000 * 100 + 99, 10**6) == 64_000
    assert plain.longest(64_000 * 100 + 99, 10**6) == 64_000
    assert plain.longest(10**9, 1000) == 1000
    assert plain.tokens(-1, 1000) == plain.longest(6399, 1000) == 0
    # 128 tokens cost 128 * 30, and 1,280 of them 1,280 * 10 + 128 * 20.
    spans = KvCost((SpanCost(None, 1, 10, None), SpanCost(Chunk(128), 2, 20, 128)))
    assert spans.tokens(10 * 128 * 30, 128) == 1280
    assert spans.tokens(3 * (1280 * 10 + 128 * 20), 1280) == 3 * 1280
    assert spans.longest(1280 * 10 + 128 * 20, 10**6) == 1280


@given(
    pool=st.integers(0, 10**9),
    context=st.integers(1, 10**6),
    full=st.integers(1, 10**5),
    capped=st.integers(0, 10**5),
    span=st.integers(1, 9000),
)
def test_the_longest_sequence_fits_and_a_page_more_does_not(
    pool: int, context: int, full: int, capped: int, span: int
) -> None:
    held = (-(-span // 64) + 1) * 64
    kv = KvCost((SpanCost(None, 1, full, None), SpanCost(Window(span), 1, capped, held)))
    longest = kv.longest(pool, context)
    assert kv.sequence_bytes(longest) <= pool
    assert longest == context or kv.sequence_bytes(longest + 64) > pool

"""Configurations of the families with grouped attention and experts."""

from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.model import config_hf
from paceline.model.config import (
    ChosenSoftmaxRouter,
    Chunk,
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    GroupedSigmoidRouter,
    InputSigmoidRouter,
    LayerConfig,
    Llama3Rope,
    Rope,
    SoftmaxRouter,
    Temperature,
    Window,
    YarnRope,
)
from paceline.model.fields import Fields

_BASE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts_per_tok": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}
# Names and values of the fields are those of the files on the hub.
QWEN = _BASE | {
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "rope_theta": 1e6,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
GLM = _BASE | {
    "model_type": "glm4_moe",
    "attention_bias": True,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 1e6,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 3,
}
LLAMA = _BASE | {
    "model_type": "llama4_text",
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "no_rope_layers": [],
    "use_qk_norm": True,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}
OSS = _BASE | {
    "model_type": "gpt_oss",
    "attention_bias": True,
    "num_local_experts": 128,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "rope_theta": 150000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
}
HEADS = GroupedAttention(heads=32, kv_heads=4, head_dim=128, rope=Rope(1e6, 128))


def layers(base: dict[str, Any], **changes: Any) -> tuple[LayerConfig, ...]:
    return config_hf.parse(Fields(base | changes, Path("config.json")), frozenset()).layers


def mixed(base: dict[str, Any], **changes: Any) -> list[int]:
    """The layers that have experts."""
    found = layers(base, **changes)
    return [i for i, layer in enumerate(found) if isinstance(layer.mlp, ExpertMlp)]


def attentions(base: dict[str, Any], **changes: Any) -> list[GroupedAttention]:
    found = [layer.attention for layer in layers(base, **changes)]
    return [attention for attention in found if isinstance(attention, GroupedAttention)]


def test_qwen3_moe() -> None:
    experts = ExpertMlp(128, 4, 768, SoftmaxRouter(renormalise=True))
    assert layers(QWEN) == (LayerConfig(replace(HEADS, qk_norm="rms"), experts),) * 4
    assert layers(QWEN, num_experts=None, num_local_experts=128) == layers(QWEN)
    assert mixed(QWEN, decoder_sparse_step=2) == [1, 3]
    assert mixed(QWEN, mlp_only_layers=[0, 2]) == [1, 3]
    assert layers(QWEN, mlp_only_layers=[0])[0].mlp == DenseMlp(6144)
    biased = attentions(QWEN, attention_bias=True)[0]
    assert (biased.qkv_bias, biased.out_bias) == (True, True)


def test_glm4_moe() -> None:
    attention = replace(HEADS, rope=Rope(1e6, 64), qkv_bias=True, qk_norm="rms")
    router = GroupedSigmoidRouter(groups=1, kept=1, scale=2.5, renormalise=True)
    dense, experts = DenseMlp(6144), ExpertMlp(160, 4, 1536, router, shared=1536)
    assert layers(GLM) == tuple(LayerConfig(attention, mlp) for mlp in (dense, dense, dense, experts))
    assert layers(GLM, partial_rotary_factor=None) == layers(GLM)
    assert attentions(GLM, use_qk_norm=False)[0].qk_norm is None


def test_llama4() -> None:
    """Of the hub's file the text part counts."""
    rope = Rope(500000.0, 128, Llama3Rope(16.0, 1.0, 1.0, 8192), interleaved=True)
    chunked = replace(HEADS, rope=rope, qk_norm="l2", span=Chunk(8192))
    full = replace(HEADS, rope=None, temperature=Temperature(8192, 0.1))
    experts = ExpertMlp(16, 1, 6144, InputSigmoidRouter(), shared=6144)
    expected = tuple(LayerConfig(attention, experts) for attention in (chunked, chunked, chunked, full))
    assert layers({"model_type": "llama4", "text_config": LLAMA}) == expected
    assert mixed(LLAMA, interleave_moe_layer_step=2) == [1, 3]
    assert mixed(LLAMA, moe_layers=[0]) == [0]
    assert layers(LLAMA, moe_layers=[])[0].mlp == DenseMlp(16384)


def test_llama4_variants() -> None:
    listed = attentions(LLAMA, no_rope_layers=[0, 1, 1, 0])
    assert [a.rope is not None for a in listed] == [False, True, True, False]
    assert [a.span for a in listed] == [None, Chunk(8192), Chunk(8192), None]
    types = ["chunked_attention"] * 3 + ["full_attention"]
    assert [a.span for a in attentions(LLAMA, layer_types=types[::-1])] == [None] + [Chunk(8192)] * 3
    assert {a.span for a in attentions(LLAMA, attention_chunk_size=None)} == {None}
    plain = attentions(LLAMA, use_qk_norm=False, attn_temperature_tuning=False)
    assert [(a.qk_norm, a.temperature) for a in plain] == [(None, None)] * 4


def test_gpt_oss() -> None:
    rope = Rope(150000.0, 128, YarnRope(32.0, 4096, 32.0, 1.0, 0.1 * log(32) + 1, truncate=False))
    full = replace(HEADS, rope=rope, qkv_bias=True, out_bias=True, sinks=True)
    experts = ExpertMlp(128, 4, 6144, ChosenSoftmaxRouter(), activation="gpt_oss")
    window = replace(full, span=Window(128))
    assert layers(OSS) == tuple(LayerConfig(attention, experts) for attention in (window, full) * 2)
    types = ["full_attention", "full_attention", "full_attention", "sliding_attention"]
    assert [a.span for a in attentions(OSS, layer_types=types)] == [None, None, None, Window(128)]


@pytest.mark.parametrize(
    ("base", "change", "reason"),
    [
        (QWEN, {"use_sliding_window": True}, "use_sliding_window is not supported for qwen3_moe"),
        (QWEN, {"num_experts": None}, "num_local_experts is missing"),
        (QWEN, {"num_experts_per_tok": 129}, "129 experts are to be chosen of 128"),
        (QWEN, {"mlp_only_layers": [-1]}, "mlp_only_layers is [-1], expected a list of whole numbers"),
        (QWEN, {"hidden_act": "gelu"}, "activation 'gelu' is not silu"),
        (GLM, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not sigmoid"),
        (GLM, {"n_group": 160}, "160 experts in 160 groups, each of which needs two"),
        (GLM, {"n_group": 16, "topk_group": 17}, "cannot be chosen of 17 of 16 groups"),
        (LLAMA, {"no_rope_layers": [1, 1]}, "no_rope_layers has 2 entries for 4 layers"),
        (LLAMA, {"layer_types": ["chunked_attention"] * 3}, "layer_types is not full_attention or chunked"),
        (LLAMA, {"layer_types": ["sliding_attention"] * 4}, "layer_types is not full_attention or chunked"),
        (OSS, {"swiglu_limit": 10.0}, "swiglu_limit 10.0 is not 7.0"),
        (OSS, {"swiglu_alpha": 1.0}, "swiglu_alpha 1.0 is not 1.702"),
        (OSS, {"sliding_window": None}, "sliding_window is missing"),
        (OSS, {"rope_scaling": {"rope_type": "dynamic"}}, "rope scaling 'dynamic' is none of"),
    ],
)
def test_refusals(base: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        layers(base, **change)
    assert reason in str(refused.value)

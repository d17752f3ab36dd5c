"""Configurations of the families with latent attention."""

from math import log
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.model import config_hf
from paceline.model.config import (
    DenseMlp,
    ExpertMlp,
    GroupedSigmoidRouter,
    Indexer,
    LatentAttention,
    LayerConfig,
    Rope,
    YarnRope,
)
from paceline.model.fields import Fields

# As the hub has it: fields of DeepSeek's own code.
KIMI: dict[str, Any] = {
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.827,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
GLM: dict[str, Any] = KIMI | {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "rope_scaling": None,
}


def layers(base: dict[str, Any], **changes: Any) -> tuple[LayerConfig, ...]:
    return config_hf.parse(Fields(base | changes, Path("config.json")), frozenset()).layers


def latents(base: dict[str, Any], **changes: Any) -> list[LatentAttention]:
    found = [layer.attention for layer in layers(base, **changes)]
    return [attention for attention in found if isinstance(attention, LatentAttention)]


def full(base: dict[str, Any], **changes: Any) -> list[int]:
    """The layers that have an indexer of their own."""
    indexers = [attention.indexer for attention in latents(base, **changes)]
    return [i for i, indexer in enumerate(indexers) if indexer is not None and not indexer.shared]


def test_kimi() -> None:
    """YaRN leaves cosine and sine alone, and multiplies the scores by the square of its factor."""
    attention = LatentAttention(
        heads=64,
        q_rank=1536,
        kv_rank=512,
        nope_dim=128,
        value_dim=128,
        rope=Rope(50000.0, 64, YarnRope(32.0, 4096, 32.0, 1.0, 1.0, True), interleaved=True),
        scale=192**-0.5 * (0.1 * 1.0 * log(32) + 1) ** 2,
    )
    router = GroupedSigmoidRouter(groups=1, kept=1, scale=2.827, renormalise=True)
    experts = ExpertMlp(experts=384, chosen=8, intermediate=2048, router=router, shared=2048)
    dense, *rest = layers(KIMI)
    assert dense == LayerConfig(attention, DenseMlp(18432))
    assert rest == [LayerConfig(attention, experts)] * 2
    assert layers({"model_type": "kimi_k25", "text_config": KIMI}) == (dense, *rest)


def test_scale_without_all_dim() -> None:
    scaling = KIMI["rope_scaling"] | {"mscale_all_dim": 0.0}
    found = latents(KIMI, rope_scaling=scaling)[0]
    assert found.scale == 192**-0.5
    assert isinstance(found.rope.scaling, YarnRope)
    assert found.rope.scaling.attention_factor == 0.1 * log(32) + 1


def test_layers_of_experts() -> None:
    def dense(**changes: Any) -> list[bool]:
        return [isinstance(layer.mlp, DenseMlp) for layer in layers(KIMI, **changes)]

    assert dense(first_k_dense_replace=0) == [False] * 3
    assert dense(mlp_layer_types=["sparse", "dense", "sparse"]) == [False, True, False]


def test_queries_in_one_step_and_halves() -> None:
    found = latents(KIMI, q_lora_rank=None, rope_interleave=False)[0]
    assert (found.q_rank, found.rope.interleaved, found.latent_dim) == (None, False, 576)


def test_indexers() -> None:
    """GLM-5 has one in each layer, 5.2 in every fourth behind the first two; layers may be listed or spelled too."""
    assert full(GLM) == list(range(78))
    assert full(GLM, index_topk_freq=4, index_skip_topk_offset=2) == [0, *range(1, 78, 4)]
    assert full(GLM, num_hidden_layers=4, index_topk_pattern="FSSF") == [0, 3]
    listed = {
        "num_hidden_layers": 3,
        "indexer_types": ["full", "shared", "full"],
        "index_topk_pattern": "FFF",
    }
    assert full(GLM, **listed) == [0, 2]
    rope = Rope(50000.0, 64, interleaved=True)
    indexers = [attention.indexer for attention in latents(GLM, **listed)]
    assert indexers[:2] == [Indexer(32, 128, 2048, rope), Indexer(32, 128, 2048, rope, shared=True)]
    halves = latents(GLM, indexer_rope_interleave=False)[0]
    assert halves.rope.interleaved
    assert halves.indexer is not None
    assert not halves.indexer.rope.interleaved


@pytest.mark.parametrize(
    ("base", "change", "reason"),
    [
        (KIMI, {"hidden_act": "gelu"}, "activation 'gelu' is not silu"),
        (KIMI, {"scoring_func": "softmax"}, "scoring_func 'softmax' is not sigmoid"),
        (KIMI, {"topk_method": "greedy"}, "topk_method 'greedy' is not noaux_tc"),
        (KIMI, {"moe_layer_freq": 2}, "moe_layer_freq other than 1"),
        (KIMI, {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        (KIMI, {"first_k_dense_replace": -1}, "first_k_dense_replace is -1, expected a whole number"),
        (KIMI, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported for latent"),
        (
            KIMI,
            {"attention_bias": True, "q_lora_rank": None},
            "attention_bias is not supported without q_lora",
        ),
        (KIMI, {"rope_scaling": {"type": "dynamic"}}, "rope scaling 'dynamic' is none of"),
        (KIMI, {"mlp_layer_types": ["dense"]}, "mlp_layer_types is not dense or sparse for each of 3"),
        (KIMI, {"mlp_layer_types": ["dense", "moe", "moe"]}, "mlp_layer_types is not dense or sparse"),
        (KIMI, {"mlp_layer_types": "dense"}, "mlp_layer_types is 'dense', expected a list of strings"),
        (KIMI, {"n_group": 7}, "cannot be chosen of 1 of 7 groups of 384"),
        (GLM, {"q_lora_rank": None}, "q_lora_rank is missing"),
        (GLM, {"mlp_bias": True}, "mlp_bias is not supported"),
        (GLM, {"index_head_dim": 32}, "index_head_dim 32 is below qk_rope_head_dim 64"),
        (GLM, {"index_topk_pattern": "FS"}, "indexers are not full or shared for each of 78 layers"),
        (GLM, {"indexer_types": ["shared"] * 78}, "the first one full"),
        (GLM, {"index_topk_pattern": "X" * 78}, "indexers are not full or shared"),
    ],
)
def test_refusals(base: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        layers(base, **change)
    assert reason in str(refused.value)

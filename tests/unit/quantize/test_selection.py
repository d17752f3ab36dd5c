"""Which modules are quantized, by the names of published checkpoints."""

import pytest

from paceline.quantize.selection import Selection

ALL = Selection.of((), experts_only=False)


@pytest.mark.parametrize(
    "module",
    [
        "model.layers.0.self_attn.q_proj",
        "model.layers.3.self_attn.kv_a_proj_with_mqa",
        "model.layers.3.self_attn.indexer.wq_b",
        "model.layers.3.mlp.gate_proj",
        "model.layers.3.mlp.experts.17.gate_proj",
        "model.layers.3.mlp.shared_experts.down_proj",
        "language_model.model.layers.3.feed_forward.shared_expert.up_proj",
        "model.layers.0.block_sparse_moe.experts.1.w2",
    ],
)
def test_linear_layers_are_quantized(module: str) -> None:
    assert ALL.reason_to_keep(module) is None


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("model.embed_tokens", "embedding"),
        ("model.layers.61.embed_tokens", "embedding"),
        ("lm_head", "output head"),
        ("language_model.lm_head", "output head"),
        ("model.layers.61.shared_head.head", "output head"),
        ("model.layers.3.mlp.gate", "router"),
        ("model.layers.3.mlp.router", "router"),
        ("language_model.model.layers.1.feed_forward.router", "router"),
        ("model.layers.1.mlp.shared_expert_gate", "router"),
        ("model.layers.3.self_attn.indexer.weights_proj", "indexer weights"),
        ("model.layers.0.self_attn.q_norm", "norm"),
        ("vision_tower.encoder.blocks.0.mlp.fc0", "not of the language model"),
        ("model.visual.blocks.0.attn.qkv", "not of the language model"),
        ("mm_projector.proj.0", "not of the language model"),
    ],
)
def test_everything_else_is_kept(module: str, reason: str) -> None:
    assert ALL.reason_to_keep(module) == reason


def test_experts_only() -> None:
    selection = Selection.of((), experts_only=True)
    assert selection.reason_to_keep("model.layers.3.mlp.experts.17.gate_proj") is None
    for module in ("mlp.shared_experts.gate_proj", "mlp.gate_proj", "self_attn.o_proj"):
        assert selection.reason_to_keep(f"model.layers.3.{module}") == "no routed expert"


@pytest.mark.parametrize(
    "pattern", ["down_proj", "mlp.down_proj", "*.7.mlp.down_proj", r"re:model\.layers\.7\."]
)
def test_what_the_user_keeps(pattern: str) -> None:
    selection = Selection.of((pattern,), experts_only=False)
    assert selection.reason_to_keep("model.layers.7.mlp.down_proj") == "asked for"
    assert selection.reason_to_keep("model.layers.17.self_attn.q_proj") is None

"""Configurations of both kinds of files, and the models that are refused with a reason."""

import json
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import (
    DenseMlp,
    FactorsRope,
    GroupedAttention,
    LayerConfig,
    LinearRope,
    Llama3Rope,
    ModelConfig,
    Rope,
    RopeScaling,
    YarnRope,
    read_config,
)
from paceline.model.files import ModelFiles, locate
from tests.unit.model.files import write_gguf

BASE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GGUF_BASE = {
    "general.architecture": "llama",
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.feed_forward_length": 96,
    "llama.context_length": 2048,
    "llama.rope.freq_base": 500000.0,
    "llama.attention.layer_norm_rms_epsilon": 0.5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


LAYER = LayerConfig(GroupedAttention(heads=4, kv_heads=2, head_dim=16, rope=Rope(500000.0, 16)), DenseMlp(96))


def attention(config: ModelConfig) -> GroupedAttention:
    """That of the first layer."""
    found = config.layers[0].attention
    assert isinstance(found, GroupedAttention)
    return found


def hf(directory: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(BASE | changes))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return read_config(ModelFiles("m", "hf", directory))


def from_gguf(directory: Path, *tensors: str, **changes: Any) -> ModelConfig:
    metadata = {k: v for k, v in (GGUF_BASE | changes).items() if v is not None}
    values = {name: ("F32", np.ones((8, 64), np.float32)) for name in ("token_embd.weight", *tensors)}
    return read_config(ModelFiles("m", "gguf", write_gguf(directory / "m.gguf", metadata, values)))


def test_hf(tmp_path: Path) -> None:
    assert hf(tmp_path) == ModelConfig(
        family="llama",
        hidden=64,
        layers=(LAYER, LAYER),
        vocab=320,
        context=2048,
        norm_eps=1e-5,
        tied_head=False,
        bos_id=1,
        eos_ids=frozenset({2}),
    )


def test_gguf(tmp_path: Path) -> None:
    assert from_gguf(tmp_path, "output.weight") == ModelConfig(
        family="llama",
        hidden=64,
        layers=(LAYER, LAYER),
        vocab=8,
        context=2048,
        norm_eps=0.5,
        tied_head=False,
        bos_id=1,
        eos_ids=frozenset({2}),
    )


def test_every_token_that_ends_an_answer(tmp_path: Path) -> None:
    assert hf(tmp_path, {"eos_token_id": [7, 8]}).eos_ids == {2, 7, 8}
    assert from_gguf(tmp_path, **{"tokenizer.ggml.eot_token_id": 9}).eos_ids == {2, 9}
    assert hf(tmp_path, {}, eos_token_id=None, bos_token_id=None).eos_ids == frozenset()


def test_families(tmp_path: Path) -> None:
    qwen2 = attention(hf(tmp_path, model_type="qwen2"))
    qwen3 = attention(hf(tmp_path, model_type="qwen3", head_dim=32))
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.head_dim) == (True, None, 16)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, "rms", 32)
    assert hf(tmp_path, tie_word_embeddings=True).tied_head
    assert from_gguf(tmp_path).tied_head


LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 4}, LinearRope(4.0)),
        ({"type": "linear", "factor": 4}, LinearRope(4.0)),
        ({"rope_type": "llama3", **LLAMA3}, Llama3Rope(8.0, 1.0, 4.0, 512)),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "attention_factor": 1.5,
            },
            YarnRope(4.0, 512, 32.0, 1.0, 1.5, True),
        ),
    ],
)
def test_rope_scaling(scaling: dict[str, Any], expected: RopeScaling | None, tmp_path: Path) -> None:
    """As configurations spell it before transformers 5, and since."""
    old = hf(tmp_path, rope_scaling=scaling)
    new = hf(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 1e6, **scaling})
    assert attention(old).rope == Rope(500000.0, 16, expected)
    assert attention(new).rope == Rope(1e6, 16, expected)


def test_gguf_rope_scaling(tmp_path: Path) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert attention(from_gguf(tmp_path, **linear)).rope == Rope(500000.0, 16, LinearRope(4.0))
    yarn = linear | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 512}
    expected = YarnRope(4.0, 512, 32.0, 1.0, 0.1 * log(4) + 1, True)
    assert attention(from_gguf(tmp_path, **yarn)).rope == Rope(500000.0, 16, expected)


def test_gguf_rope_factors(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": ("F32", np.ones((8, 64), np.float32)),
        "rope_freqs.weight": ("F32", np.arange(1, 9, dtype=np.float32)),
    }
    files = ModelFiles("m", "gguf", write_gguf(tmp_path / "m.gguf", GGUF_BASE, tensors))
    rope = attention(read_config(files)).rope
    assert rope is not None
    assert rope.scaling == FactorsRope((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is none of llama, "),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope' is none of"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not silu"),
        ({"use_sliding_window": True}, "use_sliding_window is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 is not"),
        ({"num_hidden_layers": 2000}, "num_hidden_layers 2000 is above 1000"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected a positive whole number"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 3}, "do not share 3 KV heads"),
        ({"head_dim": 15}, "an even head dimension"),
        ({"rope_theta": 0}, "rotary base must be above 1"),
        ({"partial_rotary_factor": 0.01}, "an even head dimension, not 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor of rope scaling must be positive"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_slow": 0}}, "bound no range of turns"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1e308}}, "bound no range of turns"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": -1}},
            "is negative",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}},
            "high_freq_factor 0.5 is below",
        ),
        ({"rms_norm_eps": 1e999}, "rms_norm_eps is inf"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id is"),
    ],
)
def test_refusals(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        hf(tmp_path, **change)
    assert reason in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path / 'config.json'}: ")


def test_experts_that_would_take_minutes_to_name(tmp_path: Path) -> None:
    experts: dict[str, Any] = {"num_experts": 200_000, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    with pytest.raises(InvalidRequest, match=r"config\.json: 400000 experts in all layers are above"):
        hf(tmp_path, model_type="qwen3_moe", **experts)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3' is none of llama, qwen2, qwen3"),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        # Nothing of the size that it claims is ever made.
        ({"llama.block_count": 2**31 - 1}, "llama.block_count 2147483647 is above 1000"),
        ({"llama.rope.dimension_count": 8}, "another width"),
        ({"llama.attention.head_count_kv": 3}, "m.gguf: 4 attention heads do not share 3 KV heads"),
        (
            {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
            "rope scaling 'longrope'",
        ),
    ],
)
def test_gguf_refusals(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        from_gguf(tmp_path, **change)
    assert reason in str(refused.value)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_config_that_is_no_object(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InvalidRequest):
        read_config(ModelFiles("m", "hf", tmp_path))


def test_locate(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert locate(str(tmp_path / "a.gguf")) == ModelFiles("a", "gguf", tmp_path / "a.gguf")
    snapshot = tmp_path / "models--owner--some-name" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    with pytest.raises(InvalidRequest, match=r"no \.safetensors"):
        locate(str(snapshot))
    (snapshot / "model.safetensors").touch()
    assert locate(str(snapshot)) == ModelFiles("owner/some-name", "hf", snapshot)
    (tmp_path / "a.bin").touch()
    for path, reason in (("a.bin", "no .gguf file"), ("absent", "no model at"), (".", "no config.json")):
        with pytest.raises(InvalidRequest) as refused:
            locate(str(tmp_path / path))
        assert reason in str(refused.value)

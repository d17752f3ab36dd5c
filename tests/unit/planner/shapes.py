"""Models by their config.json, as published or small."""

import json
from pathlib import Path
from typing import Any

from paceline.planner import model
from paceline.planner.model import Model

_BASE = {"vocab_size": 100, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu"}

SMOLLM2_135M = _BASE | {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
TINY = _BASE | {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
TINY_LATENT = _BASE | {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}


def qwen3(layers: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return (
        _BASE
        | {
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": layers,
            "num_attention_heads": 64,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
        }
        | more
    )


def qwen3_moe(layers: int, kv_heads: int) -> dict[str, Any]:
    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    }
    return qwen3(layers, kv_heads, model_type="qwen3_moe", **experts)


def glm4_moe(layers: int) -> dict[str, Any]:
    return _BASE | {
        "model_type": "glm4_moe",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": layers,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    }


GLM_47_FLASH = TINY_LATENT | {
    "model_type": "glm4_moe_lite",
    "num_hidden_layers": 47,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
}
GPT_OSS_120B = _BASE | {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
}


def read(directory: Path, config: dict[str, Any]) -> Model:
    (directory / "config.json").write_text(json.dumps(config))
    return model.read(directory, "test")

"""Tiny random models, saved by transformers, and the logits that it computes for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from paceline.engine.interface import Engine
from paceline.engine.registry import open_engine
from paceline.model.files import ModelFiles, locate

library: Any = transformers  # typed only in part

VOCAB = 160
PAGES = 40

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
DEEPSEEK_YARN = YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.7}
# Neither norm of a latent follows rms_norm_eps, which is large enough here to show.
LATENT: dict[str, Any] = _SHAPE | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "rms_norm_eps": 0.05,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
# Fewer heads than 32 leave exact ties between positions that no head wants, and a token for padding, whose embedding is
# zero, ties them all.
SPARSE: dict[str, Any] = LATENT | {
    "pad_token_id": None,
    "kv_lora_rank": 128,  # FP8 rows have scales of 128 values
    "num_hidden_layers": 4,
    "index_n_heads": 32,
    "index_head_dim": 24,
    "index_topk": 37,
    "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
}
# Windows and chunks end within pages; four layers fall into page groups of one or two.
EXPERTS: dict[str, Any] = _SHAPE | {"num_hidden_layers": 4, "head_dim": 16}
# As Llama 4 has it: frequencies are divided or not, and none lies between.
_LLAMA4_ROPE = _LLAMA3_ROPE | {"high_freq_factor": 1.0}

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama3-rope": lambda: transformers.LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "yarn-rope": lambda: transformers.LlamaConfig(**_SHAPE, rope_parameters=YARN_ROPE),
    "qwen2": lambda: transformers.Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE, head_dim=16),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **LATENT | {"n_group": 4, "topk_group": 2, "n_shared_experts": 2}, rope_parameters=DEEPSEEK_YARN
    ),
    "kimi_k2": lambda: transformers.DeepseekV3Config(**LATENT | {"q_lora_rank": None}, rope_interleave=False),
    "glm4_moe_lite": lambda: transformers.Glm4MoeLiteConfig(**LATENT, attention_bias=True),
    "glm_moe_dsa": lambda: transformers.GlmMoeDsaConfig(
        **SPARSE, indexer_types=["full", "shared", "full", "shared"]
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **EXPERTS | {"num_hidden_layers": 3},
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "qwen3_moe-plain": lambda: transformers.Qwen3MoeConfig(
        **EXPERTS | {"num_hidden_layers": 2},
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        attention_bias=True,
        decoder_sparse_step=2,
    ),
    "glm4_moe": lambda: transformers.Glm4MoeConfig(
        **EXPERTS | {"num_hidden_layers": 3},
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=48,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.5,
        attention_bias=True,
        use_qk_norm=True,
    ),
    "llama4": lambda: transformers.Llama4TextConfig(
        **EXPERTS,
        intermediate_size_mlp=112,
        num_local_experts=4,
        num_experts_per_tok=2,
        interleave_moe_layer_step=2,
        attention_chunk_size=96,
        floor_scale=40,
        attn_scale=0.5,
        rope_parameters=_LLAMA4_ROPE,
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **EXPERTS
        | {"intermediate_size": 48, "initializer_range": 0.22},  # so that activations reach their limits
        num_local_experts=8,
        num_experts_per_tok=3,
        sliding_window=50,
        rope_parameters=YARN_ROPE | {"truncate": False},
    ),
}


class Reference:
    """One model on disk, in transformers, and in the engine under test."""

    def __init__(self, directory: Path, model: Any) -> None:
        self.directory = directory
        self.model = model
        self._known: dict[tuple[int, ...], npt.NDArray[np.float32]] = {}

    @property
    def files(self) -> ModelFiles:
        return locate(str(self.directory))

    def logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        """[tokens, vocab], computed by transformers once."""
        if (found := self._known.get(tuple(tokens))) is None:
            with torch.inference_mode():
                found = self.model(torch.tensor([tokens])).logits[0].float().numpy()
            self._known[tuple(tokens)] = found
        return found


def save_model(name: str, directory: Path, **options: Any) -> Reference:
    """Build the random model `name` and save it as safetensors."""
    return save(MODELS[name](), directory, seed=len(name), **options)


def save(config: Any, directory: Path, *, seed: int = 0, **options: Any) -> Reference:
    """Build a random model of `config`, of transformers, and save it as safetensors."""
    torch.manual_seed(seed)
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Left alone, norms are one and biases zero, and mixing two of them up would go unseen.
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        for buffer_name, buffer in model.named_buffers():
            if "bias" in buffer_name:
                buffer.add_(torch.randn_like(buffer) * 0.2)
    model.save_pretrained(directory, **options)
    return Reference(directory, model)


def load_engine(files: ModelFiles) -> Engine:
    """A float32 engine without pages."""
    engine = open_engine("torch", files, dtype="float32", kv_dtype="float32", device="cpu", threads=1)
    engine.load(lambda done, total: None)
    return engine


def start_engine(files: ModelFiles) -> Engine:
    """A float32 engine over pages that hold NaN, as pages of another life might: PAGES for each page group."""
    engine = load_engine(files)
    layout = engine.layout
    engine.bind(np.full((PAGES * len(layout.groups), layout.page_bytes), 0xFF, dtype=np.uint8))
    return engine

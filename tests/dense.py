"""A tiny random Llama on disk, made without torch, with a tokenizer: a model that the cpu engine runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from paceline.model.config import read_config
from paceline.model.files import ModelFiles, locate
from paceline.model.parts import parts
from tests.system.tiny import CONTEXT, save_tokenizer

# Printable bytes alone, as the byte-level alphabet spells them: no two answers are one text.
_ALPHABET = ("Ċ", "Ġ", *map(chr, range(33, 127)))


def save_dense(directory: Path, **options: Any) -> ModelFiles:
    """Save it to `directory`, which is made; weights in float32. `options` go into its config.json."""
    directory.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": save_tokenizer(directory, _ALPHABET),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        **options,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").touch()
    random = np.random.default_rng(5)
    tensors = {}
    for part in parts(read_config(locate(str(directory)))):
        name = part.name if part.name.startswith("lm_head") else f"model.{part.name}"
        values = random.normal(0.0, 0.15, part.shape).astype(np.float32)
        tensors[name] = values + 1 if "norm" in part.name else values
    # No answer ends by itself: of so many logits one is always above zero.
    tensors["lm_head.weight"][:2] = 0.0
    save_file(tensors, directory / "model.safetensors")
    return locate(str(directory))

"""Small checkpoints to quantize, and what a finished one holds."""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

HIDDEN = 256
INNER = 384
LAYER = "model.layers.{}."


def weights(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def dense_tensors(layers: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Embedding, norms, and per layer one projection of attention and one of the MLP, about 390 kB in bfloat16."""
    tensors = {"model.embed_tokens.weight": weights(40, HIDDEN, seed=1000, dtype=dtype)}
    for i in range(layers):
        layer = LAYER.format(i)
        tensors[layer + "input_layernorm.weight"] = weights(HIDDEN, seed=3 * i, dtype=dtype)
        tensors[layer + "mlp.down_proj.weight"] = weights(HIDDEN, INNER, seed=3 * i + 1, dtype=dtype)
        tensors[layer + "self_attn.q_proj.weight"] = weights(INNER, HIDDEN, seed=3 * i + 2, dtype=dtype)
    return tensors


def save(directory: Path, *shards: dict[str, Tensor], **config: Any) -> Path:
    """A model of the given shards, with a tokenizer and files that must not be copied."""
    directory.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for i, tensors in enumerate(shards):
        name = f"part-{i}.safetensors"
        safetensors.torch.save_file(tensors, directory / name)
        weight_map |= dict.fromkeys(tensors, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"} | config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "pytorch_model.bin").write_bytes(b"the same again")
    return directory


def load(directory: Path) -> dict[str, Tensor]:
    """All tensors of a finished checkpoint, found by its index, and read by the format's own library."""
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(index["weight_map"].values())):
        tensors |= safetensors.torch.load_file(directory / name)
    assert set(tensors) == set(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    return tensors


def read_config(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def ignore(done: int, total: int) -> None:
    """Progress that nobody watches."""

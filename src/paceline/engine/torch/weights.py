"""Weights from files into the tensors that the forward pass reads, in the compute dtype, one copy."""

from collections.abc import Callable
from math import prod

import numpy as np
import torch
from torch import Tensor

from paceline.engine.interface import Progress
from paceline.engine.torch.linear import Linear, TiedHead
from paceline.engine.torch.llama import Layer, Llama
from paceline.model.config import ModelConfig
from paceline.model.stored import StoredTensor

# Values converted at a time: the float32 copy of a block stays in the cache.
_BLOCK = 1 << 18


def build(
    config: ModelConfig,
    stored: dict[str, StoredTensor],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> Llama:
    """The model of `stored`, whose names and shapes are those of `model.weights.tensor_shapes`."""
    loader = _Loader(stored, dtype, device, progress)
    layers = [_layer(config, loader.join, f"layers.{i}.") for i in range(config.layers)]
    embedding = loader.join("embed_tokens.weight")
    return Llama(
        config,
        embedding=embedding,
        layers=layers,
        norm=loader.join("norm.weight"),
        head=TiedHead(embedding) if config.tied_head else Linear(loader.join("lm_head.weight")),
    )


def _layer(config: ModelConfig, join: Callable[..., Tensor], name: str) -> Layer:
    attention, mlp = name + "self_attn.", name + "mlp."
    qkv = [f"{attention}{p}_proj" for p in "qkv"]
    qk_norm = None
    if config.qk_norm:
        q, k = (join(f"{attention}{p}_norm.weight") for p in "qk")
        qk_norm = torch.cat((q.expand(config.heads, -1), k.expand(config.kv_heads, -1)))
    return Layer(
        input_norm=join(name + "input_layernorm.weight"),
        qkv=Linear(
            join(*(p + ".weight" for p in qkv)),
            join(*(p + ".bias" for p in qkv)) if config.qkv_bias else None,
        ),
        qk_norm=qk_norm,
        out=Linear(join(attention + "o_proj.weight")),
        mlp_norm=join(name + "post_attention_layernorm.weight"),
        gate_up=Linear(join(mlp + "gate_proj.weight", mlp + "up_proj.weight")),
        down=Linear(join(mlp + "down_proj.weight")),
    )


class _Loader:
    """Converts tensors and reports how many stored bytes are done."""

    def __init__(
        self, stored: dict[str, StoredTensor], dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        self._stored = stored
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total = sum(t.data.size for t in stored.values())
        self._done = 0

    def join(self, *names: str) -> Tensor:
        """The tensors `names`, one below the other."""
        parts = [self._stored[name] for name in names]
        rows = sum(t.shape[0] for t in parts)
        joined = torch.empty((rows, *parts[0].shape[1:]), dtype=self._dtype)
        for target, part in zip(torch.split(joined, [t.shape[0] for t in parts]), parts, strict=True):
            _convert(part, target)
            self._done += part.data.size
            self._progress(self._done, self._total)
        return joined.to(self._device)


def _convert(stored: StoredTensor, target: Tensor) -> None:
    """Fill `target`, which has the shape of `stored`."""
    rows, columns = stored.data.shape[0], prod(stored.shape) // stored.data.shape[0]
    target = target.view(rows, columns)
    same_bits = stored.dtype == "BF16" and target.dtype == torch.bfloat16
    stride = max(1, _BLOCK // columns)
    for start in range(0, rows, stride):
        stop = min(start + stride, rows)
        if same_bits:
            np.copyto(target[start:stop].view(torch.int16).numpy(), stored.raw(start, stop).view("<i2"))
        else:
            # Float32 files are read in place, and torch warns of memory that it may not write.
            values = np.require(stored.float32(start, stop), requirements="W")
            target[start:stop] = torch.from_numpy(values)

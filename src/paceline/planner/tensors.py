"""The weights of a model as a planner sees them: what each is for, and along which dimension it can be cut."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, TypeAlias

from paceline.model.config import (
    Attention,
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerConfig,
    ModelConfig,
)
from paceline.model.parts import Part, attention_parts, mlp_parts, parts

Kind: TypeAlias = Literal[
    "embedding",
    "head",
    "norm",
    "attention",
    "indexer",
    "dense MLP",
    "shared expert",
    "router",
    "routed experts",
    "MTP",
]
"""MTP is the projection in front of a layer for multi-token prediction; the layer's blocks count as their own kinds."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """`copies` equal tensors [rows, columns], which are more than one for routed experts only.

    Tensor parallelism cuts `rows` (outputs) or `columns` (inputs) into pieces of whole `units`, for example heads;
    None: every rank has all of it.
    """

    module: str
    kind: Kind
    layer: int | None
    rows: int
    columns: int
    matrix: bool
    cut: Literal["rows", "columns"] | None = None
    units: int = 1
    copies: int = 1

    @property
    def parameters(self) -> int:
        return self.copies * self.rows * self.columns


_EXPERT = re.compile(r"experts\.(\d+)\.")
_LAYER = re.compile(r"layers\.(\d+)\.")


def tensors(config: ModelConfig, mtp_layers: int = 0) -> Iterator[Tensor]:
    """All weights of a model, and of layers for multi-token prediction behind it, which checkpoints carry."""
    for part in parts(config):
        if (tensor := _tensor(config, part)) is not None:
            yield tensor
    extended = with_mtp(config, mtp_layers)
    for i in range(len(config.layers), len(extended.layers)):
        for part in _mtp_parts(i, extended.layers[i], config.hidden):
            if (tensor := _tensor(extended, part)) is not None:
                yield tensor


def with_mtp(config: ModelConfig, mtp_layers: int) -> ModelConfig:
    """With layers for multi-token prediction at the end: each like the last, but with an indexer of its own."""
    attention = config.layers[-1].attention
    if isinstance(attention, LatentAttention) and attention.indexer is not None:
        attention = replace(attention, indexer=replace(attention.indexer, shared=False))
    return replace(
        config, layers=config.layers + (LayerConfig(attention, config.layers[-1].mlp),) * mtp_layers
    )


def _mtp_parts(i: int, layer: LayerConfig, hidden: int) -> Iterator[Part]:
    """DeepSeek-V3 (arXiv 2412.19437), 2.2: embedding and hidden state are normed, joined and projected."""
    name = f"layers.{i}."
    yield Part(name + "eh_proj.weight", (hidden, 2 * hidden), matrix=True)
    for norm in ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm"):
        yield Part(f"{name}{norm}.weight", (hidden,))
    yield from attention_parts(name + "self_attn.", layer.attention, hidden)
    yield from mlp_parts(name + "mlp.", layer.mlp, hidden)


def _tensor(config: ModelConfig, part: Part) -> Tensor | None:
    """None for all experts but the first, which stands for them."""
    expert = _EXPERT.search(part.name)
    if expert is not None and expert[1] != "0":
        return None
    number = _LAYER.match(part.name)
    index = int(number[1]) if number else None
    layer = None if index is None else config.layers[index]
    module = part.name.rsplit(".", 1)[0]
    rows, columns = part.shape[0], prod(part.shape[1:])
    kind = _kind(module)
    cut, units = _cut(part, kind, layer)
    copies = (
        layer.mlp.experts
        if expert is not None and layer is not None and isinstance(layer.mlp, ExpertMlp)
        else 1
    )
    return Tensor(module, kind, index, rows, columns, part.matrix, cut, units, copies)


def _kind(module: str) -> Kind:
    last = module.rsplit(".", 1)[-1]
    if module in ("embed_tokens", "lm_head"):
        return "embedding" if module == "embed_tokens" else "head"
    if ".experts." in module:
        return "routed experts"
    if ".shared_experts." in module:
        return "shared expert"
    if last == "gate":
        return "router"
    if last == "eh_proj":
        return "MTP"
    if ".indexer." in module:
        return "indexer"
    if "norm" in last:
        return "norm"
    return "attention" if ".self_attn" in module else "dense MLP"


def _cut(part: Part, kind: Kind, layer: LayerConfig | None) -> tuple[Literal["rows", "columns"] | None, int]:
    """Which dimension tensor parallelism cuts, and into how many pieces it can.

    Of multi-head latent attention all ranks have what compresses, and the latent cache, because all heads share them.
    """
    if kind in ("embedding", "head"):
        return "rows", part.shape[0]
    if layer is None or kind in ("norm", "indexer", "router", "MTP"):
        return None, 1
    name = part.name.rsplit(".", 2)[-2]
    down = name in ("o_proj", "down_proj")
    if down and not part.matrix:
        return None, 1
    units = _heads(layer.attention, name) if kind == "attention" else _intermediate(layer.mlp, kind)
    if units is None:
        return None, 1
    return ("columns" if down else "rows"), units


def _heads(attention: Attention, name: str) -> int | None:
    if name in ("k_proj", "v_proj") and isinstance(attention, GroupedAttention):
        return attention.kv_heads
    if name in ("q_a_proj", "kv_a_proj_with_mqa"):
        return None
    return attention.heads


def _intermediate(mlp: DenseMlp | ExpertMlp, kind: Kind) -> int | None:
    if isinstance(mlp, ExpertMlp) and kind == "shared expert":
        return mlp.shared
    return mlp.intermediate

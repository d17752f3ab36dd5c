"""Weights from files into the blocks of a decoder."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.engine.torch.decoder import AttentionBlock, Decoder, Layer
from paceline.engine.torch.experts import ExpertBlock
from paceline.engine.torch.grouped import GroupedBlock
from paceline.engine.torch.linear import Linear, Map, TiedHead
from paceline.engine.torch.loader import Loader
from paceline.engine.torch.mlp import SwiGlu
from paceline.model.config import DenseMlp, ExpertMlp, GroupedAttention, Mlp, ModelConfig, Rope


class Builder:
    """Puts a model together from the parts that `model.parts` names."""

    def __init__(self, config: ModelConfig, loader: Loader) -> None:
        self._config = config
        self._loader = loader

    def decoder(self) -> Decoder:
        loader, config = self._loader, self._config
        layers = [self._layer(i) for i in range(len(config.layers))]
        embedding = loader.tensor("embed_tokens.weight")
        return Decoder(
            embedding=embedding,
            layers=layers,
            norm=loader.tensor("norm.weight"),
            head=TiedHead(embedding) if config.tied_head else loader.matrix("lm_head"),
            eps=config.norm_eps,
        )

    def _layer(self, i: int) -> Layer:
        layer, name = self._config.layers[i], f"layers.{i}."
        return Layer(
            attention_norm=self._loader.tensor(name + "input_layernorm.weight"),
            attention=self._attention(i, name + "self_attn."),
            mlp_norm=self._loader.tensor(name + "post_attention_layernorm.weight"),
            mlp=self._mlp(layer.mlp, name + "mlp."),
        )

    def _attention(self, i: int, name: str) -> AttentionBlock:
        attention = self._config.layers[i].attention
        match attention:
            case GroupedAttention():
                return self._grouped(i, attention, name)

    def _grouped(self, i: int, attention: GroupedAttention, name: str) -> GroupedBlock:
        loader = self._loader
        qk_norm = None
        if attention.qk_norm == "rms":
            q, k = (loader.tensor(f"{name}{p}_norm.weight") for p in "qk")
            qk_norm = torch.cat((q.expand(attention.heads, -1), k.expand(attention.kv_heads, -1)))
        return GroupedBlock(
            config=attention,
            layer=i,
            qkv=loader.matrix(*(f"{name}{p}_proj" for p in "qkv")),
            out=loader.matrix(name + "o_proj"),
            qk_norm=qk_norm,
            sinks=loader.tensor(name + "sinks") if attention.sinks else None,
            eps=self._config.norm_eps,
        )

    def _mlp(self, mlp: Mlp, name: str) -> Map:
        match mlp:
            case DenseMlp():
                return self._swiglu(name)
            case ExpertMlp():
                return self._experts(mlp, name)

    def _experts(self, mlp: ExpertMlp, name: str) -> ExpertBlock:
        def wide(part: str) -> Tensor | None:
            """Float32, because rounding would send rows to other experts."""
            present = self._loader.has(name + part)
            return self._loader.tensor(name + part, dtype=torch.float32) if present else None

        return ExpertBlock(
            config=mlp,
            gate=Linear(self._loader.tensor(name + "gate.weight", dtype=torch.float32), wide("gate.bias")),
            correction=wide("gate.e_score_correction_bias"),
            experts=self._loader.experts(name + "experts.", mlp),
            shared=self._swiglu(name + "shared_experts.") if mlp.shared else None,
        )

    def _swiglu(self, name: str) -> SwiGlu:
        matrix = self._loader.matrix
        return SwiGlu(matrix(name + "gate_proj", name + "up_proj"), matrix(name + "down_proj"))


def ropes_of(config: ModelConfig) -> Iterator[Rope]:
    """Every way in which the layers rotate, some of them more than once."""
    for layer in config.layers:
        if layer.attention.rope is not None:
            yield layer.attention.rope

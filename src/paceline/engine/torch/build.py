"""Weights from files into the blocks of a decoder."""

from collections.abc import Iterator

import torch
from torch import Tensor

from paceline.engine.torch.decoder import AttentionBlock, Decoder, Layer
from paceline.engine.torch.experts import ExpertBlock
from paceline.engine.torch.grouped import GroupedBlock
from paceline.engine.torch.indexer import IndexerBlock
from paceline.engine.torch.latent import LatentBlock
from paceline.engine.torch.latent_heads import LatentHeads
from paceline.engine.torch.linear import Linear, Map, TiedHead
from paceline.engine.torch.loader import Loader
from paceline.engine.torch.mlp import SwiGlu
from paceline.model.config import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Mlp,
    ModelConfig,
    Rope,
)


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
            case LatentAttention():
                return self._latent(i, attention, name)

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
            sinks=loader.tensor(name + "sinks", dtype=torch.float32) if attention.sinks else None,
            eps=self._config.norm_eps,
        )

    def _latent(self, i: int, attention: LatentAttention, name: str) -> LatentBlock:
        loader, ranked = self._loader, attention.q_rank is not None
        queries = name + ("q_a_proj" if ranked else "q_proj")
        up = loader.tensor(name + "kv_b_proj.weight").view(attention.heads, -1, attention.kv_rank)
        return LatentBlock(
            heads=LatentHeads(attention, up),
            layer=i,
            down=loader.matrix(queries, name + "kv_a_proj_with_mqa"),
            q_norm=loader.tensor(name + "q_a_layernorm.weight") if ranked else None,
            q_up=loader.matrix(name + "q_b_proj") if ranked else None,
            kv_norm=loader.tensor(name + "kv_a_layernorm.weight"),
            out=loader.matrix(name + "o_proj"),
            indexer=self._indexer(i, attention.indexer, name + "indexer."),
        )

    def _indexer(self, i: int, indexer: Indexer | None, name: str) -> IndexerBlock | None:
        if indexer is None or indexer.shared:
            return None
        loader = self._loader
        return IndexerBlock(
            config=indexer,
            layer=i,
            query=loader.matrix(name + "wq_b"),
            key=loader.matrix(name + "wk"),
            key_norm=(loader.tensor(name + "k_norm.weight"), loader.tensor(name + "k_norm.bias")),
            weights=loader.tensor(name + "weights_proj.weight", dtype=torch.float32),
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
        if isinstance(layer.attention, LatentAttention) and layer.attention.indexer is not None:
            yield layer.attention.indexer.rope

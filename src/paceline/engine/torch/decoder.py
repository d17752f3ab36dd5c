"""The forward pass of every model: what differs lies in the blocks.

h = h + attention(norm(h))
h = h + mlp(norm(h))
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn.functional import embedding

from paceline.engine.torch.attention import StepAttention
from paceline.engine.torch.linear import Map
from paceline.engine.torch.norm import rms_norm
from paceline.engine.torch.rope import Rotation
from paceline.model.config import Rope


@dataclass(slots=True)
class Forward:
    """What the blocks share during one step.

    positions: [T]
    rotations: by the way in which a layer rotates
    selected: int32 [T, top_k], the positions that the last sparse-attention indexer chose for each row, -1 for none;
        None when every row attends to all that it sees
    """

    positions: Tensor
    rotations: dict[Rope, Rotation]
    attention: StepAttention
    selected: Tensor | None = None


class AttentionBlock(Protocol):
    def __call__(self, x: Tensor, forward: Forward) -> Tensor:
        """x [T, hidden] -> [T, hidden]. Writes the keys and values of every row to its slot before it attends."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; `mlp` maps [T, hidden] -> [T, hidden]."""

    attention_norm: Tensor
    attention: AttentionBlock
    mlp_norm: Tensor
    mlp: Map


@dataclass(frozen=True, slots=True)
class Decoder:
    """Weights and arithmetic; keys and values live in pages."""

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    head: Map
    eps: float

    def __call__(self, tokens: Tensor, forward: Forward, logit_rows: Tensor) -> Tensor:
        """tokens: [T] -> logits [R, vocab] of the rows `logit_rows` [R]"""
        h = embedding(tokens, self.embedding)
        for layer in self.layers:
            h = h + layer.attention(rms_norm(h, layer.attention_norm, self.eps), forward)
            h = h + layer.mlp(rms_norm(h, layer.mlp_norm, self.eps))
        return self.head(rms_norm(h[logit_rows], self.norm, self.eps))

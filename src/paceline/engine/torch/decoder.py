"""The forward pass of every model: what differs lies in the blocks.

h = h + attention(norm(h))
h = h + mlp(norm(h))
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from torch import Tensor
from torch.nn.functional import embedding

from paceline.engine.torch.attention import Attention
from paceline.engine.torch.kernels.rms_norm import add_rms_norm, rms_norm
from paceline.engine.torch.linear import Map
from paceline.engine.torch.rope import Rotation
from paceline.model.config import Rope


@dataclass(slots=True)
class Forward:
    """What the blocks share during one step.

    positions: [T]
    rotations: by the way in which a layer rotates
    selected: what the last sparse-attention indexer chose, int32 [T, top_k] positions of each row, -1 for none; None
        when every row attends to all that it sees
    """

    positions: Tensor
    rotations: dict[Rope, Rotation]
    attention: Attention
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
        x = rms_norm(h, self.layers[0].attention_norm, self.eps)
        # What a block gives is added and the sum normed for the next one in one go.
        for layer, following in pairwise(self.layers):
            x, h = add_rms_norm(layer.attention(x, forward), h, layer.mlp_norm, self.eps)
            x, h = add_rms_norm(layer.mlp(x), h, following.attention_norm, self.eps)
        last = self.layers[-1]
        x, h = add_rms_norm(last.attention(x, forward), h, last.mlp_norm, self.eps)
        if not len(logit_rows):
            return x.new_empty(0, len(self.embedding))
        # Nobody attends to what the last MLP gives: only rows that want logits need it.
        x, _ = add_rms_norm(last.mlp(x[logit_rows]), h[logit_rows], self.norm, self.eps)
        return self.head(x)

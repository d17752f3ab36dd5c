"""Memory of one step beside weights and KV: activations in bfloat16, scores and logits in float32.

Buffers of one layer are used again by the next, so that the largest layer counts once.
"""

from dataclasses import dataclass

from paceline.model.config import DenseMlp, ExpertMlp, GroupedAttention, LayerConfig, ModelConfig
from paceline.planner.parallel import Parallel

_BF16 = 2
_FP32 = 4
SPLITS = 16
"""Parts of a long context that decode attends to at once, each with a partial result."""
SCORE_BLOCK = 512 * 2**20
"""Rows of an indexer are scored in blocks whose scores take at most so many bytes."""


@dataclass(frozen=True, slots=True)
class Step:
    """The largest step: `rows` tokens at once, of which `sampled` need logits, in contexts of `context` tokens."""

    rows: int
    sampled: int
    context: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes per GPU."""

    hidden: int
    attention: int
    mlp: int
    logits: int

    @property
    def bytes(self) -> int:
        """Attention and MLP take turns."""
        return self.hidden + max(self.attention, self.mlp) + self.logits


def workspace(config: ModelConfig, parallel: Parallel, step: Step) -> Workspace:
    layers = dict.fromkeys(config.layers)
    vocab = -(-config.vocab // parallel.tp) + config.vocab
    return Workspace(
        hidden=3 * step.rows * config.hidden * _BF16,  # residual, normed, result of the block
        attention=max(_attention(layer, parallel, step) for layer in layers),
        mlp=max(_mlp(layer, config.hidden, parallel, step) for layer in layers),
        logits=step.sampled * vocab * _FP32,  # a rank's share, and all gathered
    )


def _attention(layer: LayerConfig, parallel: Parallel, step: Step) -> int:
    """Queries and outputs per head; where every row samples, which is decode, also a partial output per split."""
    attention = layer.attention
    heads = attention.heads // parallel.tp
    scores = 0
    if isinstance(attention, GroupedAttention):
        kv_heads = -(-attention.kv_heads // parallel.tp)
        row = (2 * heads + 2 * kv_heads) * attention.head_dim
        output = attention.head_dim
    else:
        # Absorbed: queries meet latents, and sums of latents are multiplied back.
        query = attention.nope_dim + attention.rope.dim
        row = heads * (query + attention.latent_dim + attention.kv_rank + attention.value_dim)
        row += (attention.q_rank or 0) + attention.latent_dim
        output = attention.kv_rank
        if attention.indexer is not None:
            row += attention.indexer.heads * attention.indexer.dim
            scores = min(step.rows * step.context * _FP32, SCORE_BLOCK)
    partial = heads * SPLITS * (output + 1) * _FP32 if step.rows == step.sampled else 0
    return step.rows * (row * _BF16 + partial) + scores


def _mlp(layer: LayerConfig, hidden: int, parallel: Parallel, step: Step) -> int:
    mlp = layer.mlp
    if isinstance(mlp, DenseMlp):
        return step.rows * 3 * mlp.intermediate // parallel.tp * _BF16
    return _experts(mlp, hidden, parallel, step)


def _experts(mlp: ExpertMlp, hidden: int, parallel: Parallel, step: Step) -> int:
    """Rows in the order of the experts, gate and up, their product, and the result; experts are equally busy."""
    rows = -(-step.rows * parallel.dp * mlp.chosen // parallel.ep)
    return rows * (2 * hidden + 3 * mlp.intermediate // parallel.expert_tp) * _BF16

"""Names and shapes of the tensors of every kind of layer.

Names are Hugging Face's without the prefix of the language model, with one spelling for what families call differently.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.model.config import (
    Attention,
    ChosenSoftmaxRouter,
    ExpertMlp,
    GroupedAttention,
    GroupedSigmoidRouter,
    Indexer,
    LatentAttention,
    Mlp,
    ModelConfig,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor. A `matrix` [out, in] belongs to a linear map, which a checkpoint may store quantised."""

    name: str
    shape: tuple[int, ...]
    matrix: bool = False


def parts(config: ModelConfig) -> Iterator[Part]:
    """Every tensor that the model needs."""
    hidden = config.hidden
    yield Part("embed_tokens.weight", (config.vocab, hidden))
    for i, layer in enumerate(config.layers):
        name = f"layers.{i}."
        yield Part(name + "input_layernorm.weight", (hidden,))
        yield from attention_parts(name + "self_attn.", layer.attention, hidden)
        yield Part(name + "post_attention_layernorm.weight", (hidden,))
        yield from mlp_parts(name + "mlp.", layer.mlp, hidden)
    yield Part("norm.weight", (hidden,))
    if not config.tied_head:
        yield Part("lm_head.weight", (config.vocab, hidden), matrix=True)


def attention_parts(name: str, attention: Attention, hidden: int) -> Iterator[Part]:
    if isinstance(attention, LatentAttention):
        return _latent(name, attention, hidden)
    return _grouped(name, attention, hidden)


def _grouped(name: str, attention: GroupedAttention, hidden: int) -> Iterator[Part]:
    dim = attention.head_dim
    for kind, heads in (("q", attention.heads), ("k", attention.kv_heads), ("v", attention.kv_heads)):
        yield Part(f"{name}{kind}_proj.weight", (heads * dim, hidden), matrix=True)
        if attention.qkv_bias:
            yield Part(f"{name}{kind}_proj.bias", (heads * dim,))
    if attention.qk_norm == "rms":
        yield Part(name + "q_norm.weight", (dim,))
        yield Part(name + "k_norm.weight", (dim,))
    if attention.sinks:
        yield Part(name + "sinks", (attention.heads,))
    yield Part(name + "o_proj.weight", (hidden, attention.heads * dim), matrix=True)
    if attention.out_bias:
        yield Part(name + "o_proj.bias", (hidden,))


def _latent(name: str, attention: LatentAttention, hidden: int) -> Iterator[Part]:
    heads, rank = attention.heads, attention.kv_rank
    query = heads * (attention.nope_dim + attention.rope.dim)
    if attention.q_rank is None:
        yield Part(name + "q_proj.weight", (query, hidden), matrix=True)
    else:
        yield Part(name + "q_a_proj.weight", (attention.q_rank, hidden), matrix=True)
        if attention.bias:
            yield Part(name + "q_a_proj.bias", (attention.q_rank,))
        yield Part(name + "q_a_layernorm.weight", (attention.q_rank,))
        yield Part(name + "q_b_proj.weight", (query, attention.q_rank), matrix=True)
    yield Part(name + "kv_a_proj_with_mqa.weight", (attention.latent_dim, hidden), matrix=True)
    if attention.bias:
        yield Part(name + "kv_a_proj_with_mqa.bias", (attention.latent_dim,))
    yield Part(name + "kv_a_layernorm.weight", (rank,))
    yield Part(
        name + "kv_b_proj.weight", (heads * (attention.nope_dim + attention.value_dim), rank), matrix=True
    )
    yield Part(name + "o_proj.weight", (hidden, heads * attention.value_dim), matrix=True)
    if attention.bias:
        yield Part(name + "o_proj.bias", (hidden,))
    if attention.indexer is not None and not attention.indexer.shared and attention.q_rank is not None:
        yield from _indexer(name + "indexer.", attention.indexer, attention.q_rank, hidden)


def _indexer(name: str, indexer: Indexer, q_rank: int, hidden: int) -> Iterator[Part]:
    yield Part(name + "wq_b.weight", (indexer.heads * indexer.dim, q_rank), matrix=True)
    yield Part(name + "wk.weight", (indexer.dim, hidden), matrix=True)
    yield Part(name + "k_norm.weight", (indexer.dim,))
    yield Part(name + "k_norm.bias", (indexer.dim,))
    yield Part(name + "weights_proj.weight", (indexer.heads, hidden), matrix=True)


def mlp_parts(name: str, mlp: Mlp, hidden: int) -> Iterator[Part]:
    if not isinstance(mlp, ExpertMlp):
        yield from _swiglu(name, mlp.intermediate, hidden)
        return
    yield Part(name + "gate.weight", (mlp.experts, hidden))
    if isinstance(mlp.router, ChosenSoftmaxRouter):
        yield Part(name + "gate.bias", (mlp.experts,))
    if isinstance(mlp.router, GroupedSigmoidRouter):
        yield Part(name + "gate.e_score_correction_bias", (mlp.experts,))
    for e in range(mlp.experts):
        expert = f"{name}experts.{e}."
        if mlp.activation == "silu":
            yield from _swiglu(expert, mlp.intermediate, hidden)
        else:
            yield from _clamped(expert, mlp.intermediate, hidden)
    if mlp.shared is not None:
        yield from _swiglu(name + "shared_experts.", mlp.shared, hidden)


def _swiglu(name: str, intermediate: int, hidden: int) -> Iterator[Part]:
    yield Part(name + "gate_proj.weight", (intermediate, hidden), matrix=True)
    yield Part(name + "up_proj.weight", (intermediate, hidden), matrix=True)
    yield Part(name + "down_proj.weight", (hidden, intermediate), matrix=True)


def _clamped(name: str, intermediate: int, hidden: int) -> Iterator[Part]:
    """Rows of the first matrix alternate: one of the gate, one of up."""
    yield Part(name + "gate_up_proj.weight", (2 * intermediate, hidden), matrix=True)
    yield Part(name + "gate_up_proj.bias", (2 * intermediate,))
    yield Part(name + "down_proj.weight", (hidden, intermediate), matrix=True)
    yield Part(name + "down_proj.bias", (hidden,))

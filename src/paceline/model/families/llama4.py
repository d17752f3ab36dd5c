"""Llama 4, its text part: three layers of four look back over their chunk only; the fourth has no rotary positions,
sees everything, and sharpens its softmax as positions grow (arXiv 2501.19399)."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.model.config import (
    Chunk,
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    InputSigmoidRouter,
    LayerConfig,
    Mlp,
    Temperature,
)
from paceline.model.families.common import layer_count, layer_types, rope
from paceline.model.families.grouped import grouped_attention, head_dim
from paceline.model.fields import Fields

_THETA = 500000.0


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    layers = layer_count(fields)
    attentions, mlps = _attentions(fields, layers), _mlps(fields, layers)
    return tuple(LayerConfig(*blocks) for blocks in zip(attentions, mlps, strict=True))


def _attentions(fields: Fields, layers: int) -> list[GroupedAttention]:
    bias = fields.flag("attention_bias", False)
    plain = replace(
        grouped_attention(fields, rope(fields, head_dim(fields), interleaved=True, theta=_THETA)),
        qkv_bias=bias,
        out_bias=bias,
    )
    rotated = replace(plain, qk_norm="l2" if fields.flag("use_qk_norm", True) else None)
    unrotated = replace(plain, rope=None, temperature=_temperature(fields))
    rotates = _rotates(fields, layers)
    chunk = Chunk(fields.count("attention_chunk_size")) if "attention_chunk_size" in fields else None
    default = ["chunked_attention" if turned and chunk else "full_attention" for turned in rotates]
    spans = {"full_attention": None} | ({"chunked_attention": chunk} if chunk else {})
    kinds = layer_types(fields, default, spans)
    return [
        replace(rotated if turned else unrotated, span=spans[kind])
        for turned, kind in zip(rotates, kinds, strict=True)
    ]


def _temperature(fields: Fields) -> Temperature | None:
    if not fields.flag("attn_temperature_tuning", True):
        return None
    return Temperature(fields.count("floor_scale", 8192), fields.number("attn_scale", 0.1))


def _rotates(fields: Fields, layers: int) -> Sequence[int]:
    """Whether each layer has rotary positions; `no_rope_layers` lists just that, not those without."""
    interval = fields.count("no_rope_layer_interval", 4)
    rotates = fields.wholes("no_rope_layers", ()) or [(i + 1) % interval for i in range(layers)]
    if len(rotates) < layers:
        raise fields.refuse(f"no_rope_layers has {len(rotates)} entries for {layers} layers")
    return rotates[:layers]


def _mlps(fields: Fields, layers: int) -> list[Mlp]:
    """One layer in `interleave_moe_layer_step` has experts, or those listed as `moe_layers`."""
    step = fields.count("interleave_moe_layer_step", 1)
    mixed = fields.wholes("moe_layers", range(step - 1, layers, step))
    intermediate = fields.count("intermediate_size")
    experts: Mlp = ExpertMlp(
        experts=fields.count("num_local_experts"),
        chosen=fields.count("num_experts_per_tok"),
        intermediate=intermediate,
        router=InputSigmoidRouter(),
        shared=intermediate,
    )
    dense: Mlp = DenseMlp(fields.count("intermediate_size_mlp", 16384))
    return [experts if i in mixed else dense for i in range(layers)]

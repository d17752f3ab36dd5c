"""Llama 2 and 3, SmolLM2, Qwen2 and Qwen3: dense decoders with grouped-query attention.

Qwen2 adds biases to queries, keys and values; Qwen3 norms each query and key head before it is rotated.
"""

from dataclasses import replace

from paceline.model.config import DenseMlp, LayerConfig
from paceline.model.families.common import layer_count, rope
from paceline.model.families.grouped import grouped_attention, head_dim
from paceline.model.fields import Fields


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    family = fields.text("model_type")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if fields.flag(key, False):
            raise fields.refuse(f"{key} is not supported for {family}")
    attention = replace(
        grouped_attention(fields, rope(fields, head_dim(fields))),
        qkv_bias=family == "qwen2",
        qk_norm="rms" if family == "qwen3" else None,
    )
    layer = LayerConfig(attention, DenseMlp(fields.count("intermediate_size")))
    return (layer,) * layer_count(fields)

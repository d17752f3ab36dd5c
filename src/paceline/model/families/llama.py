"""Llama 2 and 3, SmolLM2, Qwen2 and Qwen3: dense decoders with grouped-query attention.

Qwen2 adds biases to queries, keys and values; Qwen3 norms each query and key head before it is rotated.
"""

from paceline.model.config import DenseMlp, GroupedAttention, LayerConfig
from paceline.model.families.common import layer_count, rope
from paceline.model.fields import Fields


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    family = fields.text("model_type")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if fields.flag(key, False):
            raise fields.refuse(f"{key} is not supported for {family}")
    layer = LayerConfig(grouped_attention(fields, family), DenseMlp(fields.count("intermediate_size")))
    return (layer,) * layer_count(fields)


def grouped_attention(fields: Fields, family: str) -> GroupedAttention:
    heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", fields.count("hidden_size") // heads)
    return GroupedAttention(
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=head_dim,
        rope=rope(fields, head_dim),
        qkv_bias=family == "qwen2",
        qk_norm="rms" if family.startswith("qwen3") else None,
    )

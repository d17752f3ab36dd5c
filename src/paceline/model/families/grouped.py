"""Grouped-query attention, as most families spell it."""

from paceline.model.config import GroupedAttention, Rope
from paceline.model.fields import Fields


def head_dim(fields: Fields) -> int:
    return fields.count("head_dim", fields.count("hidden_size") // fields.count("num_attention_heads"))


def grouped_attention(fields: Fields, rope: Rope) -> GroupedAttention:
    """To all positions and without biases: families `replace` what they do otherwise."""
    heads = fields.count("num_attention_heads")
    return GroupedAttention(
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=head_dim(fields),
        rope=rope,
    )

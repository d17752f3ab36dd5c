"""GLM-4.5, 4.6 and 4.7 (arXiv 2508.06471): half of each head is rotated, and DeepSeek-V3's router chooses experts."""

from dataclasses import replace

from paceline.model.config import LayerConfig
from paceline.model.families.common import layer_count, rope
from paceline.model.families.experts import dense_first
from paceline.model.families.grouped import grouped_attention, head_dim
from paceline.model.fields import Fields

_ROTARY_PART = 0.5


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    attention = replace(
        grouped_attention(fields, rope(fields, head_dim(fields), part=_ROTARY_PART)),
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm="rms" if fields.flag("use_qk_norm", False) else None,
    )
    return tuple(LayerConfig(attention, mlp) for mlp in dense_first(fields, layer_count(fields)))

"""DeepSeek-V3 (arXiv 2412.19437), and those of its shape: Kimi K2, the text part of K2.5 and K2.6, GLM-4.7-Flash."""

from paceline.model.config import LayerConfig
from paceline.model.families.common import layer_count
from paceline.model.families.experts import dense_first
from paceline.model.families.latent import latent_attention
from paceline.model.fields import Fields


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    attention = latent_attention(fields)
    return tuple(LayerConfig(attention, mlp) for mlp in dense_first(fields, layer_count(fields)))

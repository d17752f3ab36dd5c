"""Multi-head latent attention, as DeepSeek-V3's fields spell it and others repeat."""

from paceline.model.config import Indexer, LatentAttention, yarn_attention_factor
from paceline.model.families.common import rope, rope_fields, rope_kind
from paceline.model.fields import Fields


def latent_attention(fields: Fields, indexer: Indexer | None = None) -> LatentAttention:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    rotary, nope = fields.count("qk_rope_head_dim"), fields.count("qk_nope_head_dim")
    turned = rope(fields, rotary, interleaved=fields.flag("rope_interleave", True))
    if turned.dim != rotary:
        raise fields.refuse("a partial_rotary_factor is not supported for latent attention")
    q_rank = fields.count("q_lora_rank") if "q_lora_rank" in fields else None
    bias = fields.flag("attention_bias", False)
    if bias and q_rank is None:
        raise fields.refuse("attention_bias is not supported without q_lora_rank")
    return LatentAttention(
        heads=fields.count("num_attention_heads"),
        q_rank=q_rank,
        kv_rank=fields.count("kv_lora_rank"),
        nope_dim=nope,
        value_dim=fields.count("v_head_dim"),
        rope=turned,
        scale=(nope + rotary) ** -0.5 * _context_scale(rope_fields(fields)),
        bias=bias,
        indexer=indexer,
    )


def _context_scale(parameters: Fields) -> float:
    """What YaRN multiplies the scores by: DeepSeek scales these instead of cosine and sine."""
    all_dim = parameters.number("mscale_all_dim", 0.0)
    if rope_kind(parameters) == "default" or not all_dim:
        return 1.0
    factor = yarn_attention_factor(parameters.number("factor"), all_dim)
    return factor * factor

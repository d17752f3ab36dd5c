"""Multi-head latent attention and the experts beside it, as DeepSeek-V3's fields spell them and others repeat."""

from paceline.model.config import (
    DenseMlp,
    ExpertMlp,
    GroupedSigmoidRouter,
    Indexer,
    LatentAttention,
    Mlp,
    yarn_attention_factor,
)
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
    return yarn_attention_factor(parameters.number("factor"), all_dim) ** 2


def sigmoid_experts(fields: Fields) -> ExpertMlp:
    """Experts behind DeepSeek-V3's router, with shared ones that count as one."""
    for key, run in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if (found := fields.text(key, run)) != run:
            raise fields.refuse(f"{key} {found!r} is not {run}")
    intermediate = fields.count("moe_intermediate_size")
    return ExpertMlp(
        experts=fields.count("n_routed_experts"),
        chosen=fields.count("num_experts_per_tok"),
        intermediate=intermediate,
        router=GroupedSigmoidRouter(
            groups=fields.count("n_group"),
            kept=fields.count("topk_group"),
            scale=fields.number("routed_scaling_factor"),
            renormalise=fields.flag("norm_topk_prob", True),
        ),
        shared=intermediate * fields.count("n_shared_experts"),
    )


def dense_first(fields: Fields, layers: int) -> tuple[Mlp, ...]:
    """Dense layers, then layers of experts: by a list of types where there is one, else by the number of the former."""
    if fields.whole("moe_layer_freq", 1) != 1:
        raise fields.refuse("moe_layer_freq other than 1 is not supported")
    dense: Mlp = DenseMlp(fields.count("intermediate_size"))
    experts: Mlp = sigmoid_experts(fields)
    if "mlp_layer_types" not in fields:
        first = fields.whole("first_k_dense_replace")
        return tuple(dense if i < first else experts for i in range(layers))
    kinds = {"dense": dense, "sparse": experts}
    types = fields.words("mlp_layer_types")
    if len(types) != layers or not kinds.keys() >= set(types):
        raise fields.refuse(f"mlp_layer_types is not dense or sparse for each of {layers} layers")
    return tuple(kinds[kind] for kind in types)

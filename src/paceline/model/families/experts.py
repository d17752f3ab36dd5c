"""Experts behind DeepSeek-V3's router, as its fields spell them and others repeat."""

from paceline.model.config import DenseMlp, ExpertMlp, GroupedSigmoidRouter, Mlp
from paceline.model.fields import Fields


def sigmoid_experts(fields: Fields) -> ExpertMlp:
    """Experts behind DeepSeek-V3's router, with shared ones that count as one."""
    for key, run in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if (found := fields.text(key, run)) != run:
            raise fields.refuse(f"{key} {found!r} is not {run}")
    experts, groups = fields.count("n_routed_experts"), fields.count("n_group")
    if experts < 2 * groups:
        raise fields.refuse(f"{experts} experts in {groups} groups, each of which needs two")
    intermediate = fields.count("moe_intermediate_size")
    return ExpertMlp(
        experts=experts,
        chosen=fields.count("num_experts_per_tok"),
        intermediate=intermediate,
        router=GroupedSigmoidRouter(
            groups=groups,
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

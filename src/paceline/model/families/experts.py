"""Fields of mixtures of experts that several families spell alike."""

from paceline.model.config import DenseMlp, ExpertMlp, GroupedSigmoidRouter, Mlp
from paceline.model.fields import Fields


def dense_then_experts(fields: Fields, layers: int) -> list[Mlp]:
    """The MLPs of all layers: `first_k_dense_replace` dense ones come before the mixtures."""
    dense = min(fields.whole("first_k_dense_replace", 0), layers)
    return [dense_mlp(fields)] * dense + [grouped_experts(fields)] * (layers - dense)


def dense_mlp(fields: Fields) -> Mlp:
    return DenseMlp(fields.count("intermediate_size"))


def grouped_experts(fields: Fields) -> Mlp:
    """Experts behind DeepSeek-V3's router, beside shared ones, which are computed as one."""
    for key, only in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if (found := fields.text(key, only)) != only:
            raise fields.refuse(f"{key} {found!r} is not {only}")
    experts, groups = fields.count("n_routed_experts"), fields.count("n_group")
    if experts < 2 * groups:
        raise fields.refuse(f"{experts} experts in {groups} groups: each needs two")
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
        shared=intermediate * fields.whole("n_shared_experts", 1) or None,
    )

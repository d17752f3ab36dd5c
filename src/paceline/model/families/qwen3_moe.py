"""Qwen3-MoE (arXiv 2505.09388): Qwen3's attention, and experts without a shared one in most or all layers."""

from dataclasses import replace

from paceline.model.config import DenseMlp, ExpertMlp, LayerConfig, Mlp, SoftmaxRouter
from paceline.model.families.common import layer_count, rope
from paceline.model.families.grouped import grouped_attention, head_dim
from paceline.model.fields import Fields


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    if fields.flag("use_sliding_window", False):
        raise fields.refuse("use_sliding_window is not supported for qwen3_moe")
    bias = fields.flag("attention_bias", False)
    attention = replace(
        grouped_attention(fields, rope(fields, head_dim(fields))),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="rms",
    )
    return tuple(LayerConfig(attention, mlp) for mlp in _mlps(fields, layer_count(fields)))


def _mlps(fields: Fields, layers: int) -> list[Mlp]:
    """Every `decoder_sparse_step`-th layer has experts, but for those listed as `mlp_only_layers`."""
    step, dense_only = fields.count("decoder_sparse_step", 1), fields.wholes("mlp_only_layers", ())
    dense: Mlp = DenseMlp(fields.count("intermediate_size"))
    experts: Mlp = ExpertMlp(
        # transformers 5 writes the second name.
        experts=fields.count("num_experts" if "num_experts" in fields else "num_local_experts"),
        chosen=fields.count("num_experts_per_tok"),
        intermediate=fields.count("moe_intermediate_size"),
        router=SoftmaxRouter(renormalise=fields.flag("norm_topk_prob", False)),
    )
    return [dense if i in dense_only or (i + 1) % step else experts for i in range(layers)]

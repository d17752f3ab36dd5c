"""gpt-oss (arXiv 2508.10925): every other layer looks back over a window only; heads have sinks, all maps biases."""

from dataclasses import replace

from paceline.model.config import ChosenSoftmaxRouter, ExpertMlp, LayerConfig, Window
from paceline.model.families.common import layer_count, layer_types, rope
from paceline.model.families.grouped import grouped_attention, head_dim
from paceline.model.fields import Fields

_THETA = 150000.0


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    for key, run in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if (found := fields.number(key, run)) != run:
            raise fields.refuse(f"{key} {found} is not {run}")
    bias = fields.flag("attention_bias", True)
    attention = replace(
        grouped_attention(fields, rope(fields, head_dim(fields), theta=_THETA)),
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
    )
    mlp = ExpertMlp(
        experts=fields.count("num_local_experts"),
        chosen=fields.count("num_experts_per_tok"),
        intermediate=fields.count("intermediate_size"),
        router=ChosenSoftmaxRouter(),
        activation="gpt_oss",
    )
    kinds = {
        "sliding_attention": LayerConfig(
            replace(attention, span=Window(fields.count("sliding_window"))), mlp
        ),
        "full_attention": LayerConfig(attention, mlp),
    }
    default = [("sliding_attention", "full_attention")[i % 2] for i in range(layer_count(fields))]
    return tuple(kinds[kind] for kind in layer_types(fields, default, kinds))

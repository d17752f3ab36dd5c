"""Fields that all families spell alike."""

from collections.abc import Collection, Sequence

from paceline.model.config import (
    LinearRope,
    Llama3Rope,
    Rope,
    RopeScaling,
    YarnRope,
    yarn_attention_factor,
)
from paceline.model.fields import Fields

THETA = 10000.0


MAX_LAYERS = 1000
"""Far above any model: a damaged file shall be refused, not fill memory with layers."""


def layer_count(fields: Fields) -> int:
    layers = fields.count("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise fields.refuse(f"num_hidden_layers {layers} is above {MAX_LAYERS}")
    return layers


def layer_types(fields: Fields, default: Sequence[str], known: Collection[str]) -> Sequence[str]:
    """The kind of each layer's attention, one of `known`; `default` when the file does not say."""
    types = fields.words("layer_types") if "layer_types" in fields else default
    if len(types) != len(default) or not set(types) <= set(known):
        raise fields.refuse(f"layer_types is not {' or '.join(known)} for each of {len(default)} layers")
    return types


def rope(
    fields: Fields, head_dim: int, *, interleaved: bool = False, theta: float = THETA, part: float = 1.0
) -> Rope:
    """Rotary positions of heads of `head_dim`. `theta`, and `part`, which is rotated, hold if the file does not say."""
    parameters = rope_fields(fields)
    part = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", part))
    if not 0.0 < part <= 1.0:
        raise fields.refuse(f"partial_rotary_factor {part} is not above 0 and at most 1")
    return Rope(
        theta=parameters.number("rope_theta", fields.number("rope_theta", theta)),
        dim=int(head_dim * part),
        scaling=_scaling(parameters, fields.count("max_position_embeddings")),
        interleaved=interleaved,
    )


def rope_fields(fields: Fields) -> Fields:
    """transformers 5 writes `rope_parameters`; before, theta stood alone and `rope_scaling` was optional."""
    return fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")


def rope_kind(parameters: Fields) -> str:
    return parameters.text("rope_type", parameters.text("type", "default"))


def _scaling(parameters: Fields, context: int) -> RopeScaling | None:
    kind = rope_kind(parameters)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearRope(parameters.number("factor"))
    if kind == "llama3":
        return Llama3Rope(
            factor=parameters.number("factor"),
            low_freq_factor=parameters.number("low_freq_factor"),
            high_freq_factor=parameters.number("high_freq_factor"),
            original_context=parameters.count("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _yarn(parameters, context)
    raise parameters.refuse(f"rope scaling {kind!r} is none of default, linear, llama3, yarn")


def _yarn(parameters: Fields, context: int) -> YarnRope:
    factor = parameters.number("factor")
    return YarnRope(
        factor=factor,
        original_context=parameters.count("original_max_position_embeddings", context),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        attention_factor=parameters.number("attention_factor", _attention_factor(parameters, factor)),
        truncate=parameters.flag("truncate", True),
    )


def _attention_factor(parameters: Fields, factor: float) -> float:
    """DeepSeek scales the softmax by `mscale_all_dim` instead, and cosine and sine only by what is left of `mscale`."""
    mscale, all_dim = (parameters.number(key, 0.0) for key in ("mscale", "mscale_all_dim"))
    if min(mscale, all_dim) < 0:
        raise parameters.refuse(f"mscale {mscale} or mscale_all_dim {all_dim} is negative")
    if mscale and all_dim:
        return yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, all_dim)
    return yarn_attention_factor(factor)

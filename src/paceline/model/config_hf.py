"""config.json and generation_config.json of a Hugging Face directory."""

from pathlib import Path
from typing import cast

from paceline.model.config import (
    FAMILIES,
    Family,
    LinearRope,
    Llama3Rope,
    ModelConfig,
    RopeScaling,
    YarnRope,
    yarn_attention_factor,
)
from paceline.model.fields import Fields, read_json

_THETA = 10000.0


def read(directory: Path) -> ModelConfig:
    """Raises `InvalidRequest` for a model that this program cannot run."""
    fields = read_json(directory / "config.json")
    family = fields.text("model_type")
    if family not in FAMILIES:
        raise fields.refuse(f"model_type {family!r} is none of {', '.join(FAMILIES)}")
    _refuse_variants(fields, family)
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    context = fields.count("max_position_embeddings")
    # transformers 5 writes `rope_parameters`; before, theta stood alone and `rope_scaling` was optional.
    rope = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    return ModelConfig(
        family=cast(Family, family),
        hidden=hidden,
        layers=fields.count("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", hidden // heads),
        intermediate=fields.count("intermediate_size"),
        vocab=fields.count("vocab_size"),
        context=context,
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", _THETA)),
        rope_scaling=_scaling(rope, context),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        bos_id=min(fields.ids("bos_token_id"), default=None),
        eos_ids=eos_ids(directory),
    )


def eos_ids(directory: Path) -> frozenset[int]:
    """Every token that ends an answer: instruct models list more of them in generation_config.json."""
    ids = read_json(directory / "config.json").ids("eos_token_id")
    generation = directory / "generation_config.json"
    return ids | read_json(generation).ids("eos_token_id") if generation.exists() else ids


def _refuse_variants(fields: Fields, family: str) -> None:
    if (activation := fields.text("hidden_act", "silu")) != "silu":
        raise fields.refuse(f"activation {activation!r} is not silu")
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if fields.flag(key, False):
            raise fields.refuse(f"{key} is not supported for {family}")
    if "quantization_config" in fields:
        raise fields.refuse("quantized checkpoints are not supported")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("rotary embedding of a part of the head is not supported")


def _scaling(rope: Fields, context: int) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearRope(rope.number("factor"))
    if kind == "llama3":
        return Llama3Rope(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_context=rope.count("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _yarn(rope, context)
    raise rope.refuse(f"rope scaling {kind!r} is none of default, linear, llama3, yarn")


def _yarn(rope: Fields, context: int) -> YarnRope:
    for key in ("mscale", "mscale_all_dim"):
        if key in rope:
            raise rope.refuse(f"yarn with {key} is not supported")
    factor = rope.number("factor")
    return YarnRope(
        factor=factor,
        original_context=rope.count("original_max_position_embeddings", context),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor", yarn_attention_factor(factor)),
        truncate=rope.flag("truncate", True),
    )

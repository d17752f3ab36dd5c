"""The model configuration in a GGUF file's metadata."""

from pathlib import Path

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import (
    DenseMlp,
    FactorsRope,
    GroupedAttention,
    LayerConfig,
    LinearRope,
    ModelConfig,
    Rope,
    RopeScaling,
    Unsound,
    YarnRope,
    yarn_attention_factor,
)
from paceline.model.families.common import MAX_LAYERS
from paceline.model.fields import Fields
from paceline.model.gguf import GgufFile

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
_THETA = 10000.0


def read(path: Path) -> ModelConfig:
    """Raises `InvalidRequest` for a model that this program cannot run."""
    try:
        return _read(GgufFile(path))
    except Unsound as e:
        raise InvalidRequest(f"{path}: {e}") from e


def _read(file: GgufFile) -> ModelConfig:
    path = file.path
    family = Fields(file.metadata, path).text("general.architecture")
    fields = Fields(file.metadata, path, prefix=f"{family}.")
    if family not in FAMILIES:
        raise fields.refuse(f"architecture {family!r} is none of {', '.join(FAMILIES)}")
    if fields.number("expert_count", 0) > 0:
        raise fields.refuse("mixtures of experts are not supported")
    heads = fields.count("attention.head_count")
    hidden = fields.count("embedding_length")
    head_dim = fields.count("attention.key_length", hidden // heads)
    if {head_dim} != {fields.count(k, head_dim) for k in ("attention.value_length", "rope.dimension_count")}:
        raise fields.refuse(
            f"heads of {head_dim} with values or rotary parts of another width are not supported"
        )
    context = fields.count("context_length")
    attention = GroupedAttention(
        heads=heads,
        kv_heads=fields.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope=Rope(
            fields.number("rope.freq_base", _THETA), head_dim, _scaling(file, fields, head_dim, context)
        ),
        qkv_bias=family == "qwen2",
        qk_norm="rms" if family == "qwen3" else None,
    )
    if (layers := fields.count("block_count")) > MAX_LAYERS:
        raise fields.refuse(f"{family}.block_count {layers} is above {MAX_LAYERS}")
    layer = LayerConfig(attention, DenseMlp(fields.count("feed_forward_length")))
    return ModelConfig(
        family=family,
        hidden=hidden,
        layers=(layer,) * layers,
        vocab=file.tensor("token_embd.weight").shape[0],
        context=context,
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
        bos_id=min(Fields(file.metadata, path).ids("tokenizer.ggml.bos_token_id"), default=None),
        eos_ids=eos_ids(file),
    )


def eos_ids(file: GgufFile) -> frozenset[int]:
    """Every token that ends an answer: the end of a text, of a turn, of a message."""
    fields = Fields(file.metadata, file.path)
    return frozenset().union(
        *(fields.ids(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    )


def _scaling(file: GgufFile, fields: Fields, head_dim: int, context: int) -> RopeScaling | None:
    if ROPE_FACTORS in file.tensors:
        factors = file.tensor(ROPE_FACTORS)
        if factors.shape != (head_dim // 2,):
            raise fields.refuse(f"{ROPE_FACTORS} has shape {factors.shape}, expected {(head_dim // 2,)}")
        return FactorsRope(tuple(factors.float32(0, 1)[0].astype(np.float64).tolist()))
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return LinearRope(factor)
    if kind == "yarn":
        return YarnRope(
            factor=factor,
            original_context=fields.count("rope.scaling.original_context_length", context),
            beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=fields.number("rope.scaling.attn_factor", yarn_attention_factor(factor)),
            truncate=True,
        )
    raise fields.refuse(f"rope scaling {kind!r} is none of none, linear, yarn")

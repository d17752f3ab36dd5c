"""GLM-5, 5.1 and 5.2: latent attention to the positions that an indexer selects.

From 5.2 on most layers have no indexer of their own and attend to what the last one before them selected (IndexShare,
arXiv 2603.12201).
"""

from dataclasses import replace

from paceline.model.config import Indexer, LatentAttention, LayerConfig
from paceline.model.families.common import layer_count
from paceline.model.families.experts import dense_first
from paceline.model.families.latent import latent_attention
from paceline.model.fields import Fields


def read_layers(fields: Fields) -> tuple[LayerConfig, ...]:
    """Raises `InvalidRequest` for a variant that this program cannot run."""
    if fields.flag("mlp_bias", False):
        raise fields.refuse("mlp_bias is not supported for glm_moe_dsa")
    fields.count("q_lora_rank")  # the indexer reads the latent of the queries
    layers = layer_count(fields)
    attention = latent_attention(fields)
    indexer = _indexer(fields, attention)
    kinds = {
        "full": replace(attention, indexer=indexer),
        "shared": replace(attention, indexer=replace(indexer, shared=True)),
    }
    types = _indexer_types(fields, layers)
    if len(types) != layers or types[0] != "full" or not kinds.keys() >= set(types):
        raise fields.refuse(
            f"indexers are not full or shared for each of {layers} layers, the first one full"
        )
    return tuple(
        LayerConfig(kinds[k], mlp) for k, mlp in zip(types, dense_first(fields, layers), strict=True)
    )


def _indexer(fields: Fields, attention: LatentAttention) -> Indexer:
    dim = fields.count("index_head_dim")
    if dim < attention.rope.dim:
        raise fields.refuse(f"index_head_dim {dim} is below qk_rope_head_dim {attention.rope.dim}")
    return Indexer(
        heads=fields.count("index_n_heads"),
        dim=dim,
        top_k=fields.count("index_topk"),
        rope=replace(attention.rope, interleaved=fields.flag("indexer_rope_interleave", True)),
    )


def _indexer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    """Listed, or a letter each, or one full layer in so many behind the first few."""
    if "indexer_types" in fields:
        return fields.words("indexer_types")
    if "index_topk_pattern" in fields:
        letters = {"F": "full", "S": "shared"}
        return tuple(letters.get(letter, letter) for letter in fields.text("index_topk_pattern"))
    every = max(fields.whole("index_topk_freq", 1), 1)
    offset = fields.whole("index_skip_topk_offset", 2)
    return tuple("shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers))

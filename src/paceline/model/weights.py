"""One naming and one row order for the weights of either kind of file: Hugging Face's, without its `model.`"""

from typing import Protocol

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import GroupedAttention, ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.gguf import GgufFile
from paceline.model.parts import parts
from paceline.model.safetensors import SafetensorsDirectory
from paceline.model.stored import StoredTensor

_GGUF_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class _Source(Protocol):
    def tensor(self, name: str) -> StoredTensor: ...


def open_weights(files: ModelFiles, config: ModelConfig) -> dict[str, StoredTensor]:
    """Views of every tensor that the model needs, by name; nothing is read but headers.

    Raises `InvalidRequest` for a tensor that is missing, damaged, or of another shape than `config` demands.
    """
    source: _Source = GgufFile(files.path) if files.kind == "gguf" else SafetensorsDirectory(files.path)
    tensors = {}
    for part in parts(config):
        name = part.name
        stored = source.tensor(_gguf_name(name) if files.kind == "gguf" else _hf_name(name))
        if stored.shape != part.shape:
            raise InvalidRequest(
                f"{files.path}: tensor {name} has shape {stored.shape}, expected {part.shape}"
            )
        if files.kind == "gguf" and config.family == "llama":
            stored = _unpermute(name, stored, config)
        tensors[name] = stored
    return tensors


def _hf_name(name: str) -> str:
    return name if name == "lm_head.weight" else "model." + name


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, layer, rest = name.split(".", 2)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_LAYER[part]}.{kind}"


def _unpermute(name: str, stored: StoredTensor, config: ModelConfig) -> StoredTensor:
    """llama.cpp interleaves the two rotary halves of each q and k head, for this architecture only."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return stored
    attention = config.layers[0].attention
    if not isinstance(attention, GroupedAttention):
        raise TypeError("llama.cpp permutes the heads of grouped attention only")
    rows = np.arange(stored.shape[0], dtype=np.int64).reshape(-1, attention.head_dim // 2, 2)
    return StoredTensor(stored.dtype, stored.shape, stored.data, rows.swapaxes(1, 2).reshape(-1))

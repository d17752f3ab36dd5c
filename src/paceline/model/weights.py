"""One naming and one row order for the weights of either kind of file: Hugging Face's, without its `model.`"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.gguf import GgufFile
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


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and row-major shapes of every tensor that the model needs."""
    hidden, dim = config.hidden, config.head_dim
    yield "embed_tokens.weight", (config.vocab, hidden)
    for i in range(config.layers):
        layer = f"layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        for name, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
            yield f"{layer}self_attn.{name}_proj.weight", (heads * dim, hidden)
            if config.qkv_bias:
                yield f"{layer}self_attn.{name}_proj.bias", (heads * dim,)
        if config.qk_norm:
            yield layer + "self_attn.q_norm.weight", (dim,)
            yield layer + "self_attn.k_norm.weight", (dim,)
        yield layer + "self_attn.o_proj.weight", (hidden, config.heads * dim)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (config.intermediate, hidden)
        yield layer + "mlp.up_proj.weight", (config.intermediate, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, config.intermediate)
    yield "norm.weight", (hidden,)
    if not config.tied_head:
        yield "lm_head.weight", (config.vocab, hidden)


def open_weights(files: ModelFiles, config: ModelConfig) -> dict[str, StoredTensor]:
    """Views of every tensor that the model needs, by name; nothing is read but headers.

    Raises `InvalidRequest` for a tensor that is missing, damaged, or of another shape than `config` demands.
    """
    source: _Source = GgufFile(files.path) if files.kind == "gguf" else SafetensorsDirectory(files.path)
    tensors = {}
    for name, shape in tensor_shapes(config):
        stored = source.tensor(_gguf_name(name) if files.kind == "gguf" else _hf_name(name))
        if stored.shape != shape:
            raise InvalidRequest(f"{files.path}: tensor {name} has shape {stored.shape}, expected {shape}")
        if files.kind == "gguf" and config.family == "llama":
            stored = _unpermute(name, stored, config.head_dim)
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


def _unpermute(name: str, stored: StoredTensor, head_dim: int) -> StoredTensor:
    """llama.cpp interleaves the two rotary halves of each q and k head, for this architecture only."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return stored
    rows = np.arange(stored.shape[0], dtype=np.int64).reshape(-1, head_dim // 2, 2)
    return StoredTensor(stored.dtype, stored.shape, stored.data, rows.swapaxes(1, 2).reshape(-1))

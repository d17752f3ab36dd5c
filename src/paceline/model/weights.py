"""One naming and one row order for the weights of either kind of file: that of `parts`."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import GroupedAttention, ModelConfig
from paceline.model.files import ModelFiles
from paceline.model.fused import FusedExperts, TransposedTensor
from paceline.model.gguf import GgufFile
from paceline.model.names import Names
from paceline.model.parts import Part, parts
from paceline.model.quantized.configuration import read_scheme
from paceline.model.quantized.matrices import StoredMatrix, open_matrix
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


Stored: TypeAlias = StoredMatrix | TransposedTensor
"""Each has `shape`, `arrays` and `nbytes` in the file, and `float32(start, stop)`, the values of some rows."""


def open_weights(files: ModelFiles, config: ModelConfig) -> dict[str, Stored]:
    """Views of every tensor that the model needs, by name; nothing is read but headers.

    Raises `InvalidRequest` for a tensor that is missing, damaged, or of another shape than `config` demands.
    """
    open_part = _gguf(files, config) if files.kind == "gguf" else _safetensors(files, config)
    return {part.name: open_part(part) for part in parts(config)}


def _safetensors(files: ModelFiles, config: ModelConfig) -> Callable[[Part], Stored]:
    source = SafetensorsDirectory(files.path)
    names = Names.of(config.family, source)
    scheme = read_scheme(files.path)
    fused = FusedExperts(source, scheme)

    def open_part(part: Part) -> Stored:
        name = names.stored(part.name)
        if (expert := fused.open(name, part.shape)) is not None:
            return expert
        if part.matrix:
            rows, columns = part.shape
            return open_matrix(source, name.removesuffix(".weight"), (rows, columns), scheme)
        return _checked(source.tensor(name), name, part, files)

    return open_part


def _gguf(files: ModelFiles, config: ModelConfig) -> Callable[[Part], Stored]:
    source = GgufFile(files.path)

    def open_part(part: Part) -> Stored:
        name = _gguf_name(part.name)
        stored = _checked(source.tensor(name), name, part, files)
        return _unpermute(part.name, stored, config) if config.family == "llama" else stored

    return open_part


def _checked(stored: StoredTensor, name: str, part: Part, files: ModelFiles) -> StoredTensor:
    if stored.shape != part.shape:
        raise InvalidRequest(f"{files.path}: tensor {name} has shape {stored.shape}, expected {part.shape}")
    return stored


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

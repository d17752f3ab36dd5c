"""A model whose weights hold what a storage format leaves of them, in float32, so that nothing else differs."""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model import tiktoken
from paceline.model.bpe import from_gguf
from paceline.model.config import DenseMlp, GroupedAttention, ModelConfig, read_config
from paceline.model.files import ModelFiles, locate
from paceline.model.floats import decode_bfloat16, encode_bfloat16
from paceline.model.gguf import GgufFile
from paceline.model.weights import open_weights
from paceline.quantize.format import Float32, Format
from paceline.quantize.selection import Selection
from paceline.quantize.shard import Shard, write_shard
from paceline.quantize.tensors import OutputTensor
from paceline.quantize.work import Done, Matrix, Piece, Writer

Recoding: TypeAlias = Format | Literal["float32", "bfloat16", "dithered"]
"""What matrices go through. `float32` leaves them as they are; `dithered` adds noise like that of rounding to 4 bits:
values that were rounded once lie on a grid, to which a second rounding to 4 bits brings them back for nothing."""
_Recode: TypeAlias = Callable[[Float32], Float32]

# A multiple of the rows that share a scale in any format.
_ROWS = 256
_DITHER_GROUP = 32


def recoded(files: ModelFiles, output: Path, recoding: Recoding) -> tuple[ModelFiles, float]:
    """The dense model `files` as a Hugging Face directory in float32, in which each matrix that `paceline quantize`
    would quantize holds what `recoding` gives back; and the share of all weights that these are."""
    config = read_config(files)
    selection = Selection.of((), experts_only=False)
    works = []
    weights = quantized = 0
    for name, stored in open_weights(files, config).items():
        shape = stored.shape
        weights += prod(shape)
        recode: _Recode = _same
        if len(shape) == 2 and selection.reason_to_keep(name.removesuffix(".weight")) is None:
            recode = _choose(recoding, (shape[0], shape[1]))
        quantized += prod(shape) if recode is not _same else 0
        works.append(_Recoded(name if name.startswith("lm_head") else f"model.{name}", stored, recode))
    output.mkdir()
    (output / "config.json").write_text(json.dumps(_config(config)))
    _write_tokenizer(files, output)
    threads = len(os.sched_getaffinity(0))
    write_shard(Shard("model", tuple(works)), output / "model.safetensors", threads, lambda done: None)
    return locate(str(output)), quantized / weights


@dataclass(frozen=True, slots=True)
class _Recoded:
    """Work that stores a tensor in float32 behind `recode`."""

    module: str
    stored: Matrix
    recode: _Recode

    @property
    def source_bytes(self) -> int:
        return self.stored.nbytes

    @property
    def outputs(self) -> tuple[OutputTensor, ...]:
        return (OutputTensor(self.module, "F32", self.stored.shape),)

    def pieces(self) -> Iterator[Piece]:
        rows = prod(self.stored.shape[:-1])
        for start in range(0, rows, _ROWS):
            yield partial(self._store, start, min(start + _ROWS, rows))

    def _store(self, start: int, stop: int, write: Writer) -> Done:
        values = self.recode(self.stored.float32(start, stop))
        write(self.module, start * values.shape[1] * 4, np.ascontiguousarray(values).view(np.uint8))
        return Done(0)


def _choose(recoding: Recoding, shape: tuple[int, int]) -> _Recode:
    match recoding:
        case "float32":
            return _same
        case "bfloat16":
            return _bfloat16
        case "dithered":
            return _same if shape[1] % _DITHER_GROUP else _dithered
        case format_:
            return _same if format_.obstacle(shape) else partial(_through, format_)


def _same(values: Float32) -> Float32:
    return values


def _bfloat16(values: Float32) -> Float32:
    return decode_bfloat16(encode_bfloat16(values))


def _dithered(values: Float32) -> Float32:
    """Noise is uniform, as wide as one of the 15 steps between the smallest and the largest of a group."""
    groups = values.reshape(-1, _DITHER_GROUP)
    steps = np.ptp(groups, axis=1, keepdims=True) / np.float32(15)
    # The same for the same weights, whichever thread is given which rows.
    random = np.random.default_rng(zlib.crc32(values.tobytes()))
    noise = random.random(groups.shape, dtype=np.float32) - np.float32(0.5)
    dithered: Float32 = (groups + steps * noise).reshape(values.shape)
    return dithered


def _through(format_: Format, values: Float32) -> Float32:
    return format_.encode(values).values


def _write_tokenizer(files: ModelFiles, output: Path) -> None:
    """For the engine, which takes the scales of an FP8 cache from a text."""
    if files.kind == "gguf":
        from_gguf(GgufFile(files.path)).save(str(output / "tokenizer.json"))
        return
    for name in ("tokenizer.json", tiktoken.FILE):
        if (path := files.path / name).is_file():
            shutil.copy(path, output)


def _config(config: ModelConfig) -> dict[str, Any]:
    """config.json of a model of equal dense layers, which is what GGUF files hold."""
    layer = config.layers[0]
    if not isinstance(layer.attention, GroupedAttention) or not isinstance(layer.mlp, DenseMlp):
        raise InvalidRequest("only dense models with grouped attention can be written in float32")
    rope = layer.attention.rope
    if rope is None or rope.scaling is not None or set(config.layers) != {layer}:
        raise InvalidRequest("only models of equal layers without rope scaling can be written in float32")
    return {
        "model_type": config.family,
        "hidden_size": config.hidden,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": layer.attention.heads,
        "num_key_value_heads": layer.attention.kv_heads,
        "head_dim": layer.attention.head_dim,
        "intermediate_size": layer.mlp.intermediate,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": rope.theta,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": config.bos_id,
        "eos_token_id": sorted(config.eos_ids),
    }

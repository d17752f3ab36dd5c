"""A model's weights in the order that the native step reads them."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu.importance import measure_importance
from paceline.engine.cpu.library import PlFormat, PlLayer, PlMatrix, PlModel
from paceline.engine.cpu.packing import Arena, Memory, Packable, Packer, Placed
from paceline.engine.interface import Progress
from paceline.model.config import DenseMlp, GroupedAttention, ModelConfig
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.int4_files import AwqRows, CompressedRows, GptqRows
from paceline.model.rope import inverse_frequencies
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

Weights: TypeAlias = Literal["auto", "int4", "int8", "bfloat16", "float32"]
"""What matrices are multiplied as.

    auto              as the file has them, exactly; what it has in floating point stays so
    bfloat16, float32 all in that
    int8              integers of 8 bits in groups of 32; what the file has in 5 to 8 bits stays as it is
    int4              integers of 4 bits in groups of 32; what the file has in 4 bits stays as it is

Codes of 4 bits are searched for with regard to what their matrix multiplies in a sample of text (importance.py). In
`int4` the embedding and the head take 8 bits unless the file has them in 4: an error there reaches every logit, and
llama.cpp's files spare them too. A tied head is the embedding, packed once.
"""

_GROUP = 32
_INT4 = PlFormat.U4_F16_MIN
_INT8 = PlFormat.I8_F16
_FOUR_BITS = {PlFormat.U4_F16_MIN, PlFormat.U4_F16, PlFormat.U4_F32_MIN, PlFormat.U4_F32}
_FLOATS = {PlFormat.BF16, PlFormat.F16, PlFormat.F32}

EXACT: Mapping[str, PlFormat] = {
    "Q4_0": PlFormat.U4_F16,
    "Q4_1": PlFormat.U4_F16_MIN,
    "Q5_0": PlFormat.I8_F16,
    "Q5_1": PlFormat.I8_F32_MIN,
    "Q8_0": PlFormat.I8_F16,
    "MXFP4": PlFormat.I8_F32_MIN,
    "Q2_K": PlFormat.I8_F32_MIN_16,
    "Q3_K": PlFormat.I8_F32_MIN_16,
    "Q4_K": PlFormat.U4_F32_MIN,
    "Q5_K": PlFormat.I8_F32_MIN,
    "Q6_K": PlFormat.I8_F32_MIN_16,
    "Q8_K": PlFormat.I8_F32_MIN,
    "F32": PlFormat.F32,
    "F16": PlFormat.F16,
    "BF16": PlFormat.BF16,
}
"""The format that holds all that a `StoredTensor` of this dtype says."""


class PackedModel:
    """`model` is valid as long as this lives. What depends on the pages, its `kv` and of each layer the scales and the
    plane, is the caller's to fill in."""

    def __init__(self, model: PlModel, memory: Memory, *kept: object) -> None:
        self.model = model
        self._memory = memory
        self._kept = kept

    @property
    def nbytes(self) -> int:
        """Of all packed weights."""
        return self._memory.size


def pack_model(
    config: ModelConfig,
    stored: Mapping[str, Stored],
    weights: Weights,
    library: ctypes.CDLL,
    *,
    threads: int,
    progress: Progress,
    sample: Callable[[], Sequence[int]] | None = None,
) -> PackedModel:
    """The model of `stored`, which `support.check_model` accepts, packed by `threads` threads.

    `sample` gives the tokens of a text. It is called when codes of 4 bits are to be made, which are better for it.

    Raises `InvalidRequest`, naming the tensor, for a matrix that cannot be stored in `weights`.
    """
    packer = Packer(library)
    plan = _Plan(packer, weights)
    for name, tensor in stored.items():
        plan.add(name, tensor)
    memory = Memory(plan.arena.size)
    matrices = plan.matrices
    if sample is not None and any(_searched(matrix) for matrix in matrices):
        importance = measure_importance(config, stored, sample())
        matrices = [replace(matrix, importance=importance.get(matrix.name)) for matrix in matrices]
    packer.pack(matrices, memory, threads, progress)
    for offset, vector in plan.vectors.values():
        memory.array(offset, vector.shape[0])[:] = vector.float32(0, 1)[0]
    return _Builder(config, plan, memory).build()


def exact_format(stored: Packable) -> PlFormat:
    """The smallest format that keeps every value of a matrix."""
    if isinstance(stored, StoredTensor):
        return EXACT[stored.dtype]
    if not stored.symmetric:
        return PlFormat.U4_F32_MIN
    return PlFormat.U4_F16 if _has_float16_scales(stored) else PlFormat.U4_F32


def choose_format(name: str, stored: Packable, weights: Weights) -> PlFormat:
    """What the matrix `name` is packed as. Raises `InvalidRequest` when its rows cannot be cut into groups."""
    exact = exact_format(stored)
    chosen = exact
    if weights == "float32":
        chosen = PlFormat.F32
    elif weights == "bfloat16":
        chosen = PlFormat.BF16
    elif weights == "int4" and exact not in _FOUR_BITS and not name.startswith(("embed_tokens", "lm_head")):
        chosen = _INT4
    elif weights != "auto" and exact in (_FLOATS if weights == "int4" else _FLOATS | _FOUR_BITS):
        chosen = _INT8
    if chosen not in _FLOATS and stored.shape[1] % _GROUP:
        raise InvalidRequest(
            f"{name} has {stored.shape[1]} columns, which cannot be cut into groups of {_GROUP}: "
            f"{weights} weights are not possible, bfloat16 are"
        )
    return chosen


def _searched(matrix: Placed) -> bool:
    """Whether codes of 4 bits are made for a matrix that had none."""
    return matrix.format is _INT4 and exact_format(matrix.stored) is not _INT4


class _Plan:
    """Where everything lies in memory."""

    def __init__(self, packer: Packer, weights: Weights) -> None:
        self.arena = Arena()
        self.matrices: list[Placed] = []
        self.vectors: dict[str, tuple[int, StoredTensor]] = {}
        self._packer = packer
        self._weights = weights

    def add(self, name: str, stored: Stored) -> None:
        if not isinstance(stored, StoredTensor | Int4Matrix):
            raise TypeError(f"{name} is {stored.storage}, which `check_model` refuses")
        if isinstance(stored, StoredTensor) and len(stored.shape) == 1:
            self.vectors[name] = self.arena.place(stored.shape[0] * 4), stored
            return
        rows, columns = stored.shape
        format_ = choose_format(name, stored, self._weights)
        offset = self.arena.place(self._packer.size(format_, rows, columns))
        self.matrices.append(Placed(name, stored, format_, offset))


class _Builder:
    """Fills the structures of native/abi.h."""

    def __init__(self, config: ModelConfig, plan: _Plan, memory: Memory) -> None:
        self._config = config
        self._plan = plan
        self._memory = memory
        self._matrices = {matrix.name: matrix for matrix in plan.matrices}

    def build(self) -> PackedModel:
        config, layer = self._config, self._config.layers[0]
        attention, mlp = layer.attention, layer.mlp
        if not isinstance(attention, GroupedAttention) or not isinstance(mlp, DenseMlp):
            raise TypeError("a model that `check_model` refuses")
        layers = (PlLayer * len(config.layers))(*(self._layer(i) for i in range(len(config.layers))))
        frequencies, scale = np.zeros(0), 1.0
        if attention.rope is not None:
            frequencies, scale = inverse_frequencies(attention.rope)
        # In float32, as transformers computes angles.
        turns = np.ascontiguousarray(frequencies, dtype=np.float32)
        model = PlModel(
            layers=len(config.layers),
            hidden=config.hidden,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            intermediate=mlp.intermediate,
            vocab=config.vocab,
            rope_dim=2 * len(turns),
            rope_interleaved=attention.rope is not None and attention.rope.interleaved,
            eps=config.norm_eps,
            rope_scale=scale,
            rope_frequencies=_address(turns),
            layer=layers,
            norm=self._vector("norm.weight"),
            embedding=self._matrix("embed_tokens"),
            head=self._matrix("embed_tokens" if config.tied_head else "lm_head"),
        )
        return PackedModel(model, self._memory, layers, turns)

    def _layer(self, i: int) -> PlLayer:
        name = f"layers.{i}."
        attention, mlp = name + "self_attn.", name + "mlp."
        return PlLayer(
            q=self._matrix(attention + "q_proj"),
            k=self._matrix(attention + "k_proj"),
            v=self._matrix(attention + "v_proj"),
            out=self._matrix(attention + "o_proj"),
            gate=self._matrix(mlp + "gate_proj"),
            up=self._matrix(mlp + "up_proj"),
            down=self._matrix(mlp + "down_proj"),
            attention_norm=self._vector(name + "input_layernorm.weight"),
            mlp_norm=self._vector(name + "post_attention_layernorm.weight"),
            q_norm=self._vector(attention + "q_norm.weight"),
            k_norm=self._vector(attention + "k_norm.weight"),
            k_scale=1.0,
            v_scale=1.0,
        )

    def _matrix(self, module: str) -> PlMatrix:
        placed = self._matrices[module + ".weight"]
        rows, columns = placed.stored.shape
        return PlMatrix(
            rows=rows,
            columns=columns,
            format=placed.format,
            data=self._memory.address + placed.offset,
            bias=self._vector(module + ".bias"),
        )

    def _vector(self, name: str) -> int | None:
        """The address of a vector, None for one that the model does not have."""
        found = self._plan.vectors.get(name)
        return None if found is None else self._memory.address + found[0]


def _has_float16_scales(stored: Int4Matrix) -> bool:
    """Whether all scales are float16 exactly."""
    rows = stored.rows
    if not isinstance(rows, CompressedRows | GptqRows | AwqRows):
        return False
    if rows.scales.dtype == "F16":
        return True
    if rows.scales.dtype != "BF16":
        return False
    # A bfloat16 with an exponent that a normal float16 can have. Two passes over the bits: scales are a 32th of all
    # weights or less, and a matrix that has larger ones is only stored in more bytes.
    bits: npt.NDArray[np.uint16] = rows.scales.values
    return bool(bits.min() >= 113 << 7 and bits.max() < 143 << 7)


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)

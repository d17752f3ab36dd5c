"""Which models the native step runs, by configuration and headers alone."""

from collections.abc import Mapping
from pathlib import Path

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu.weights import EXACT, Weights, choose_format
from paceline.model.config import DenseMlp, GroupedAttention, LayerConfig, ModelConfig
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

_GROUP = 32
_HEAD_DIMS = range(16, 257, 8)


def check_model(config: ModelConfig, stored: Mapping[str, Stored], path: Path) -> None:
    """Raises `InvalidRequest`, naming the model at `path` and the reason, for one that the cpu engine does not run."""
    if reason := runs(config, stored):
        raise InvalidRequest(f"{path}: the cpu engine does not run {reason}")


def check_precision(stored: Mapping[str, Stored], weights: Weights, path: Path) -> None:
    """Raises `InvalidRequest`, naming the model at `path` and the tensor, where a matrix cannot be stored in `weights`.
    The model is one that the engine runs."""
    for name, tensor in stored.items():
        if isinstance(tensor, StoredTensor | Int4Matrix) and len(tensor.shape) == 2:
            try:
                choose_format(name, tensor, weights)
            except InvalidRequest as e:
                raise InvalidRequest(f"{path}: {e.message}") from e


def runs(config: ModelConfig, stored: Mapping[str, Stored]) -> str | None:
    """None for a model that the cpu engine runs, otherwise what it does not run, to stand behind "does not run"."""
    kinds = dict.fromkeys(config.layers)
    for layer in kinds:
        if reason := _obstacle_in_layer(layer):
            return reason
    if len(kinds) > 1:
        return "layers that differ"
    for name, tensor in stored.items():
        if reason := _obstacle_in_tensor(tensor):
            return f"{name}, {reason}"
    return None


def _obstacle_in_layer(layer: LayerConfig) -> str | None:
    attention = layer.attention
    if not isinstance(layer.mlp, DenseMlp):
        return "mixtures of experts"
    if not isinstance(attention, GroupedAttention):
        return "latent attention"
    obstacles = {
        "windows or chunks of attention": attention.span is not None,
        "a bias behind attention": attention.out_bias,
        "heads that are normed without a weight": attention.qk_norm == "l2",
        "attention sinks": attention.sinks,
        "queries that grow with their position": attention.temperature is not None,
        f"heads of {attention.head_dim}, only multiples of 8 from 16 to 256": attention.head_dim
        not in _HEAD_DIMS,
    }
    return next((what for what, found in obstacles.items() if found), None)


def _obstacle_in_tensor(stored: Stored) -> str | None:
    match stored:
        case StoredTensor() if stored.dtype in EXACT:
            return None
        case Int4Matrix() if stored.columns is not None:
            return "which is GPTQ with act-order"
        case Int4Matrix() if stored.group % _GROUP:
            return f"whose INT4 groups have {stored.group} columns, not a multiple of {_GROUP}"
        case Int4Matrix():
            return None
        case _:
            return f"which is stored as {stored.storage}"

"""Readers by the `model_type` of config.json."""

from collections.abc import Callable
from typing import TypeAlias

from paceline.model.config import LayerConfig
from paceline.model.families import llama
from paceline.model.fields import Fields

Reader: TypeAlias = Callable[[Fields], tuple[LayerConfig, ...]]

READERS: dict[str, Reader] = {
    "llama": llama.read_layers,
    "qwen2": llama.read_layers,
    "qwen3": llama.read_layers,
}

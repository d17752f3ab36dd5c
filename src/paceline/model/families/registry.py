"""Readers by the `model_type` of config.json."""

from collections.abc import Callable
from typing import TypeAlias

from paceline.model.config import LayerConfig
from paceline.model.families import deepseek_v3, glm_moe_dsa, llama
from paceline.model.fields import Fields

Reader: TypeAlias = Callable[[Fields], tuple[LayerConfig, ...]]

READERS: dict[str, Reader] = {
    "llama": llama.read_layers,
    "qwen2": llama.read_layers,
    "qwen3": llama.read_layers,
    "deepseek_v3": deepseek_v3.read_layers,
    "kimi_k2": deepseek_v3.read_layers,
    "glm4_moe_lite": deepseek_v3.read_layers,
    "glm_moe_dsa": glm_moe_dsa.read_layers,
}

"""Readers by the `model_type` of config.json."""

from collections.abc import Callable
from typing import TypeAlias

from paceline.model.config import LayerConfig
from paceline.model.families import deepseek_v3, glm4_moe, glm_moe_dsa, gpt_oss, llama, llama4, qwen3_moe
from paceline.model.fields import Fields

Reader: TypeAlias = Callable[[Fields], tuple[LayerConfig, ...]]

READERS: dict[str, Reader] = {
    "llama": llama.read_layers,
    "qwen2": llama.read_layers,
    "qwen3": llama.read_layers,
    "qwen3_moe": qwen3_moe.read_layers,
    "glm4_moe": glm4_moe.read_layers,
    "llama4_text": llama4.read_layers,
    "gpt_oss": gpt_oss.read_layers,
    "deepseek_v3": deepseek_v3.read_layers,
    "kimi_k2": deepseek_v3.read_layers,
    "glm4_moe_lite": deepseek_v3.read_layers,
    "glm_moe_dsa": glm_moe_dsa.read_layers,
}

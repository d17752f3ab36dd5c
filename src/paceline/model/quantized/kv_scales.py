"""Scales of keys and values that a checkpoint was calibrated with: value = e4m3 * scale."""

from dataclasses import dataclass

from paceline.model.quantized.scales import FLOATS, as_float32, read_scalar
from paceline.model.safetensors import SafetensorsDirectory

# Where writers put them: compressed-tensors, vLLM's own modules, Model Optimizer, older compressed-tensors, and at last
# AutoFP8's one scale for both.
_KEY = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale", "attn.kv_scale")
_VALUE = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale", "attn.kv_scale")


@dataclass(frozen=True, slots=True)
class KvScales:
    """Of one layer; a plane without a scale has None."""

    key: float | None
    value: float | None


def open_kv_scales(source: SafetensorsDirectory, attention: str) -> KvScales:
    """Scales of the layer whose attention is module `attention`. Raises `InvalidRequest` for one that is no number."""
    return KvScales(_first(source, attention, _KEY), _first(source, attention, _VALUE))


def _first(source: SafetensorsDirectory, attention: str, names: tuple[str, ...]) -> float | None:
    found = (f"{attention}.{name}" for name in names)
    return next(
        (read_scalar(source, name) for name in found if name in source and not _unset(source, name)), None
    )


def _unset(source: SafetensorsDirectory, name: str) -> bool:
    """vLLM's modules are saved with -1 where nothing was calibrated."""
    array = source.array(name)
    return array.dtype in FLOATS and bool((as_float32(array, array.values.reshape(-1)) == -1).all())

"""The quantization of a Hugging Face model, as its configuration files tell."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized import compressed_tensors, methods
from paceline.model.quantized.scheme import Scheme

_PARSERS: dict[str, Callable[[Mapping[str, Any], Path], Scheme]] = {
    "compressed-tensors": compressed_tensors.parse,
    "gptq": methods.parse_gptq,
    "awq": methods.parse_awq,
    "fp8": methods.parse_fp8,
    "modelopt": methods.parse_modelopt,
    "mxfp4": methods.parse_mxfp4,
}


class _Part(msgspec.Struct):
    quantization_config: dict[str, Any] | None = None
    compression_config: dict[str, Any] | None = None


class _Config(_Part):
    text_config: _Part | None = None


class _ModelOptConfig(msgspec.Struct):
    quantization: dict[str, Any]


def read_scheme(directory: Path) -> Scheme | None:
    """The scheme of the model in `directory`, None when it is not quantized.

    It stands in config.json, at the top or in the part of the text model, or in Model Optimizer's hf_quant_config.json.
    Raises `InvalidRequest` for one that this program cannot run, naming what it does not support.
    """
    path = directory / "config.json"
    config = _read(path, _Config)
    for part in (config, config.text_config or _Part()):
        if values := part.quantization_config or part.compression_config:
            return parse_scheme(values, path)
    path = directory / "hf_quant_config.json"
    if not path.exists():
        return None
    return parse_scheme({"quant_method": "modelopt"} | _read(path, _ModelOptConfig).quantization, path)


def parse_scheme(values: Mapping[str, Any], source: Path) -> Scheme:
    """The scheme that `values`, the `quantization_config` of the file `source`, describe. Raises as `read_scheme`."""
    method = values.get("quant_method", "compressed-tensors" if "config_groups" in values else None)
    if not isinstance(method, str) or (parse := _PARSERS.get(method)) is None:
        raise InvalidRequest(f"{source}: quantization by {method!r:.40} is none of {', '.join(_PARSERS)}")
    try:
        return parse(values, source)
    except (msgspec.ValidationError, UnicodeEncodeError) as e:  # the latter for half of a surrogate pair
        raise InvalidRequest(f"{source}: the quantization by {method}: {e}") from e


def _read(path: Path, kind: type[Any]) -> Any:
    try:
        # Not msgspec's own decoder: configurations hold Infinity, which JSON knows not and Python writes.
        return msgspec.convert(json.loads(path.read_bytes()), kind)
    except (OSError, ValueError, RecursionError) as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from e

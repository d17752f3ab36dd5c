"""What quantizing did to each layer: its errors and its size."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from paceline.quantize.errors import NO_ERRORS, Errors
from paceline.quantize.shard import Shard
from paceline.quantize.work import Quantize

# Not the layers of a vision tower.
_LAYER = re.compile(r"(?:(?:model|language_model|text_model)\.)*layers\.(\d+)\.")
_REST = "the rest"


@dataclass(frozen=True, slots=True)
class LayerReport:
    """`errors` and `quantized_bytes` are of the matrices that were quantized, the other sizes of all tensors."""

    errors: Errors = NO_ERRORS
    quantized_bytes: int = 0
    source_bytes: int = 0
    output_bytes: int = 0

    @classmethod
    def sum(cls, parts: Iterable["LayerReport"]) -> "LayerReport":
        parts = list(parts)
        return cls(
            Errors.sum(p.errors for p in parts),
            sum(p.quantized_bytes for p in parts),
            sum(p.source_bytes for p in parts),
            sum(p.output_bytes for p in parts),
        )

    @property
    def bits_per_weight(self) -> float:
        """Of the quantized matrices, scales included; 0 when there are none."""
        return 8 * self.quantized_bytes / self.errors.weights if self.errors.weights else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """`layers` in the order of the model; `kept` are the matrices that were not quantized, each with the reason."""

    layers: Mapping[str, LayerReport]
    kept: Mapping[str, str]

    @property
    def total(self) -> LayerReport:
        return LayerReport.sum(self.layers.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "total": _figures(self.total),
            "layers": {name: _figures(layer) for name, layer in self.layers.items()},
            "kept": dict(self.kept),
        }


def of_shard(shard: Shard, errors: tuple[Errors, ...]) -> dict[str, LayerReport]:
    """The part of each layer's report that `shard` makes up."""
    parts: dict[str, list[LayerReport]] = {}
    for work, found in zip(shard.works, errors, strict=True):
        output = sum(tensor.nbytes for tensor in work.outputs)
        quantized = output if isinstance(work, Quantize) else 0
        parts.setdefault(_layer(work.module), []).append(
            LayerReport(found, quantized, work.source_bytes, output)
        )
    return {name: LayerReport.sum(found) for name, found in parts.items()}


def join(shards: Iterable[Mapping[str, LayerReport]], kept: Mapping[str, str]) -> Report:
    """The report of a model from those of its shards, which come in their order."""
    parts: dict[str, list[LayerReport]] = {}
    for shard in shards:
        for name, layer in shard.items():
            parts.setdefault(name, []).append(layer)
    layers = {name: LayerReport.sum(parts[name]) for name in sorted(parts, key=_order)}
    return Report(layers, kept)


def encode(layers: Mapping[str, LayerReport]) -> dict[str, Any]:
    return {name: asdict(layer) for name, layer in layers.items()}


def decode(data: bytes) -> dict[str, LayerReport]:
    """Raises `ValueError` for what `encode` did not make."""
    return msgspec.json.decode(data, type=dict[str, LayerReport])


def _layer(module: str) -> str:
    match = _LAYER.match(module)
    return f"layer {match[1]}" if match else _REST


def _order(name: str) -> tuple[bool, int]:
    return (name == _REST, 0 if name == _REST else int(name.split()[1]))


def _figures(layer: LayerReport) -> dict[str, float]:
    return {
        "relative_rms_error": layer.errors.relative,
        "max_error": layer.errors.largest,
        "bits_per_weight": layer.bits_per_weight,
        "quantized_weights": layer.errors.weights,
        "source_bytes": layer.source_bytes,
        "output_bytes": layer.output_bytes,
    }

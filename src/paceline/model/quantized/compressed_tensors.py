"""Configurations of compressed-tensors, which LLM Compressor writes and Kimi K2 is published with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.formats import Format, Fp4Format, Fp8Format, Int4Format
from paceline.model.quantized.patterns import Patterns
from paceline.model.quantized.scheme import Rule, Scheme

_EVERY_LINEAR = "Linear"
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class _Weights(msgspec.Struct):
    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    group_size: int | None = None
    strategy: str | None = None
    block_structure: tuple[_Positive, _Positive] | None = None


class _Group(msgspec.Struct):
    targets: list[str]
    weights: _Weights | None = None
    format: str | None = None


class _Sparsity(msgspec.Struct):
    format: str = "dense"


class _Config(msgspec.Struct):
    config_groups: dict[str, _Group]
    format: str = "dense"
    ignore: list[str] | None = None
    sparsity_config: _Sparsity | None = None
    transform_config: dict[str, Any] | None = None


def parse(values: Mapping[str, Any], source: Path) -> Scheme:
    config = msgspec.convert(values, _Config)
    if config.sparsity_config is not None and config.sparsity_config.format != "dense":
        raise InvalidRequest(f"{source}: sparse weights ({config.sparsity_config.format}) are not supported")
    if config.transform_config:
        raise InvalidRequest(f"{source}: weights under a transform (transform_config) are not supported")
    named, general = [], []
    for group in config.config_groups.values():
        if group.weights is None:
            continue
        found = _format(group.format or config.format, group.weights, source)
        if names := [t for t in group.targets if t != _EVERY_LINEAR]:
            named.append(Rule(Patterns.parse(names, source), found))
        if _EVERY_LINEAR in group.targets:
            general.append(Rule(Patterns.parse(["re:"], source), found))
    # A target that names modules goes before one that names their class, in whichever group each is.
    return Scheme((*named, *general), Patterns.parse(config.ignore or (), source))


def _format(name: str, weights: _Weights, source: Path) -> Format:
    kind = f"{weights.type}{weights.num_bits}"
    strategy = weights.strategy or _default_strategy(weights.group_size)
    if strategy == "group" and (weights.group_size is None or weights.group_size < 1):
        raise InvalidRequest(f"{source}: group_size {weights.group_size} of groups is not positive")
    if name == "pack-quantized" and kind == "int4" and strategy in ("group", "channel"):
        group = weights.group_size if strategy == "group" else None
        return Int4Format("compressed-tensors", group, weights.symmetric)
    if name in ("float-quantized", "naive-quantized") and kind == "float8" and weights.symmetric:
        if strategy in ("tensor", "channel"):
            return Fp8Format(None)
        if strategy == "block" and weights.block_structure is not None:
            return Fp8Format(weights.block_structure)
        if strategy == "group" and weights.group_size is not None:
            return Fp8Format((1, weights.group_size))
    if name == "nvfp4-pack-quantized" and kind == "float4" and weights.group_size == 16:
        return Fp4Format("nvfp4")
    if name == "mxfp4-pack-quantized" and kind == "float4" and weights.group_size == 32:
        return Fp4Format("mxfp4")
    form = "symmetric" if weights.symmetric else "asymmetric"
    raise InvalidRequest(f"{source}: {name} of {form} {kind} per {strategy} is not supported")


def _default_strategy(group_size: int | None) -> str:
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"

"""Configurations of the methods that quantize all linear layers alike: GPTQ, AWQ, FP8, Model Optimizer, MXFP4."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.formats import Format, Fp4Format, Fp8Format, Int4Format
from paceline.model.quantized.patterns import Patterns
from paceline.model.quantized.scheme import Rule, Scheme

_EXCLUDE = "-:"


class _Gptq(msgspec.Struct):
    bits: int
    group_size: int = 128
    sym: bool = True
    checkpoint_format: Literal["gptq", "gptq_v2"] | None = None
    dynamic: dict[str, Any] | None = None


class _Awq(msgspec.Struct):
    bits: int
    group_size: int = 128
    zero_point: bool = True
    version: str = "gemm"
    modules_to_not_convert: list[str] | None = None


class _Fp8(msgspec.Struct):
    weight_block_size: tuple[int, int] | None = None
    expert_dtype: str = "fp8"
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


class _ModelOpt(msgspec.Struct):
    quant_algo: str
    group_size: int = 16
    exclude_modules: list[str] | None = None
    ignore: list[str] | None = None


class _Mxfp4(msgspec.Struct):
    modules_to_not_convert: list[str] | None = None


def parse_gptq(values: Mapping[str, Any], source: Path) -> Scheme:
    """Per-module settings (`dynamic`) may leave modules out, but not change them."""
    config = msgspec.convert(values, _Gptq)
    layout = config.checkpoint_format or "gptq"
    if config.bits != 4:
        raise InvalidRequest(f"{source}: GPTQ of {config.bits} bits is not supported, only of 4")
    dynamic = config.dynamic or {}
    if changed := [pattern for pattern in dynamic if not pattern.startswith(_EXCLUDE)]:
        raise InvalidRequest(
            f"{source}: GPTQ that quantizes {changed[0]!r:.60} in another way is not supported"
        )
    excluded = ["re:" + pattern.removeprefix(_EXCLUDE) for pattern in dynamic]
    return _uniform(Int4Format(layout, _group(config.group_size, source), config.sym), excluded, source)


def parse_awq(values: Mapping[str, Any], source: Path) -> Scheme:
    # AutoAWQ's own files have other names for two fields.
    renamed = {"bits": values.get("w_bit"), "group_size": values.get("q_group_size", 128)}
    config = msgspec.convert(renamed | dict(values), _Awq)
    if config.bits != 4 or config.version.lower() != "gemm":
        raise InvalidRequest(
            f"{source}: AWQ of {config.bits} bits in the order {config.version} is not supported"
        )
    found = Int4Format("awq", _group(config.group_size, source), not config.zero_point)
    return _uniform(found, config.modules_to_not_convert or (), source)


def parse_fp8(values: Mapping[str, Any], source: Path) -> Scheme:
    """FP8 as DeepSeek-V3 is published, and as vLLM writes it when there are no blocks."""
    config = msgspec.convert(values, _Fp8)
    if config.expert_dtype != "fp8":
        raise InvalidRequest(f"{source}: experts in {config.expert_dtype} beside FP8 are not supported")
    if config.weight_block_size is not None and min(config.weight_block_size) < 1:
        raise InvalidRequest(f"{source}: weight_block_size {config.weight_block_size} is not positive")
    ignored = (*(config.modules_to_not_convert or ()), *(config.ignored_layers or ()))
    return _uniform(Fp8Format(config.weight_block_size), ignored, source)


def parse_modelopt(values: Mapping[str, Any], source: Path) -> Scheme:
    config = msgspec.convert(values, _ModelOpt)
    formats: dict[str, Format] = {
        "FP8": Fp8Format(None),
        "FP8_PER_CHANNEL_PER_TOKEN": Fp8Format(None),
        "NVFP4": Fp4Format("nvfp4-modelopt"),
    }
    found = formats.get(config.quant_algo)
    if found is None or (config.quant_algo == "NVFP4" and config.group_size != 16):
        raise InvalidRequest(
            f"{source}: quant_algo {config.quant_algo} in groups of {config.group_size} is not supported"
        )
    return _uniform(found, (*(config.exclude_modules or ()), *(config.ignore or ())), source)


def parse_mxfp4(values: Mapping[str, Any], source: Path) -> Scheme:
    """MXFP4 as gpt-oss is published."""
    config = msgspec.convert(values, _Mxfp4)
    return _uniform(Fp4Format("mxfp4-blocks"), config.modules_to_not_convert or (), source)


def _uniform(found: Format, ignored: Iterable[str], source: Path) -> Scheme:
    return Scheme((Rule(Patterns.parse(["re:"], source), found),), Patterns.parse(ignored, source))


def _group(size: int, source: Path) -> int | None:
    """-1 stands for a whole row."""
    if size != -1 and size < 1:
        raise InvalidRequest(f"{source}: group_size {size} is neither positive nor -1")
    return None if size == -1 else size

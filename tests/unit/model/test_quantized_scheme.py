"""Configurations of quantized models, as the tools and the publishers write them."""

import json
from pathlib import Path
from typing import Any

import pytest
from compressed_tensors.quantization import QuantizationConfig
from transformers.utils.quantization_config import AwqConfig, FineGrainedFP8Config, Mxfp4Config

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.configuration import parse_scheme, read_scheme
from paceline.model.quantized.formats import Format, Fp4Format, Fp8Format, Int4Format
from paceline.model.quantized.patterns import Patterns

SOURCE = Path("config.json")
EXPERT = "model.layers.3.mlp.experts.17.gate_proj"
ATTENTION = "model.layers.3.self_attn.q_proj"


def compressed(name: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}} | more


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
FP4 = {"num_bits": 4, "type": "float", "symmetric": True}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (compressed("pack-quantized", INT4), Int4Format("compressed-tensors", 32, True)),
        (
            compressed(
                "pack-quantized", INT4 | {"symmetric": False, "strategy": "channel", "group_size": None}
            ),
            Int4Format("compressed-tensors", None, False),
        ),
        (
            compressed("pack-quantized", {"num_bits": 4, "type": "int", "group_size": 128}),
            Int4Format("compressed-tensors", 128, True),
        ),
        (compressed("float-quantized", FP8 | {"strategy": "channel"}), Fp8Format(None)),
        (compressed("float-quantized", FP8), Fp8Format(None)),
        (
            compressed("float-quantized", FP8 | {"strategy": "block", "block_structure": [128, 64]}),
            Fp8Format((128, 64)),
        ),
        (compressed("naive-quantized", FP8 | {"group_size": 128}), Fp8Format((1, 128))),
        (compressed("nvfp4-pack-quantized", FP4 | {"group_size": 16}), Fp4Format("nvfp4")),
        (compressed("mxfp4-pack-quantized", FP4 | {"group_size": 32}), Fp4Format("mxfp4")),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": True},
            Int4Format("gptq", 64, True),
        ),
        (
            {
                "quant_method": "gptq",
                "bits": 4,
                "group_size": -1,
                "sym": False,
                "checkpoint_format": "gptq_v2",
            },
            Int4Format("gptq_v2", None, False),
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
            Int4Format("awq", 64, False),
        ),
        (
            {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "version": "GEMM"},
            Int4Format("awq", 32, False),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            Fp8Format((128, 128)),
        ),
        ({"quant_method": "fp8", "activation_scheme": "static"}, Fp8Format(None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, Fp4Format("nvfp4-modelopt")),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Fp8Format(None)),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, Fp4Format("mxfp4-blocks")),
    ],
)
def test_formats(values: dict[str, Any], expected: Format) -> None:
    assert parse_scheme(values, SOURCE).format(EXPERT) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (AwqConfig(group_size=64, modules_to_not_convert=["lm_head"]), Int4Format("awq", 64, False)),
        (FineGrainedFP8Config(modules_to_not_convert=["lm_head"]), Fp8Format((128, 128))),
        (Mxfp4Config(modules_to_not_convert=["lm_head"]), Fp4Format("mxfp4-blocks")),
    ],
)
def test_what_transformers_writes(written: Any, expected: Format) -> None:
    scheme = parse_scheme(json.loads(json.dumps(written.to_dict(), default=str)), SOURCE)
    assert scheme.format(EXPERT) == expected
    assert scheme.format("lm_head") is None


@pytest.mark.parametrize(
    ("preset", "name", "expected"),
    [
        ("W4A16", "pack-quantized", Int4Format("compressed-tensors", 128, True)),
        ("W4A16_ASYM", "pack-quantized", Int4Format("compressed-tensors", 128, False)),
        ("FP8", "float-quantized", Fp8Format(None)),
        ("FP8_DYNAMIC", "float-quantized", Fp8Format(None)),
        ("FP8_BLOCK", "float-quantized", Fp8Format((128, 128))),
        ("NVFP4", "nvfp4-pack-quantized", Fp4Format("nvfp4")),
        ("MXFP4A16", "mxfp4-pack-quantized", Fp4Format("mxfp4")),
    ],
)
def test_presets_of_compressed_tensors(preset: str, name: str, expected: Format) -> None:
    config = QuantizationConfig(config_groups={preset: ["Linear"]}, format=name, ignore=["lm_head"])
    scheme = parse_scheme(json.loads(config.model_dump_json()), SOURCE)
    assert scheme.format(EXPERT) == expected
    assert scheme.format("lm_head") is None


def test_kimi_quantizes_routed_experts_only() -> None:
    ignore = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    scheme = parse_scheme(compressed("pack-quantized", INT4, ignore=ignore), SOURCE)
    prefix = "language_model.model.layers.0."
    assert scheme.format(prefix + "mlp.experts.383.down_proj") == Int4Format("compressed-tensors", 32, True)
    for module in ("self_attn.kv_b_proj", "mlp.shared_experts.up_proj", "mlp.down_proj"):
        assert scheme.format(prefix + module) is None
    assert scheme.format("language_model.lm_head") is None


def test_groups_by_name_go_before_the_group_of_all_linear_layers() -> None:
    values = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": FP8, "format": "float-quantized"},
            "group_1": {"targets": ["re:.*experts.*"], "weights": INT4, "format": "pack-quantized"},
            "attention": {"targets": ["LlamaAttention"], "weights": None},
        },
    }
    scheme = parse_scheme(values, SOURCE)
    assert scheme.format(EXPERT) == Int4Format("compressed-tensors", 32, True)
    assert scheme.format(ATTENTION) == Fp8Format(None)


@pytest.mark.parametrize(
    ("values", "excluded"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self_attn"]}, True),
        ({"quant_method": "fp8", "ignored_layers": ["self_attn"]}, True),
        ({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.3.self"]}, False),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "FP8",
                "exclude_modules": ["model.layers.*.self_attn*"],
            },
            True,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.4*"]}, False),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*\.self_attn\.": {}}}, True),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": None}, False),
    ],
)
def test_exclusions(values: dict[str, Any], excluded: bool) -> None:
    assert (parse_scheme(values, SOURCE).format(ATTENTION) is None) == excluded


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("mlp.gate", "model.layers.0.mlp.gate", True),
        ("mlp.gate", "model.layers.0.mlp.gate_proj", False),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.11.mlp.up_proj", False),
        ("lm_head", "lm_head", True),
        ("head", "lm_head", False),
        ("layers.*.self_attn", "model.layers.7.self_attn.q_proj", True),
        ("layers.*.self_attn", "model.layers.7.mlp.up_proj", False),
        ("a+b", "a+b", True),
        ("re:.*experts", "model.layers.0.mlp.experts.1.up_proj", True),
        ("re:experts", "model.layers.0.mlp.experts.1.up_proj", False),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert Patterns.parse([pattern], SOURCE).match(name) == matches


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "quantization by 'bitsandbytes' is none of compressed-tensors, gptq",
        ),
        ({}, "quantization by None is none of"),
        ({"quant_method": "gptq", "bits": 3, "desc_act": True}, "GPTQ of 3 bits is not supported, only of 4"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, r"marlin.*checkpoint_format"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 8}}},
            r"quantizes '\+:x' in another way",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size 0 is neither positive nor -1"),
        ({"quant_method": "gptq"}, "required field `bits`"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ of 4 bits in the order gemv"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "experts in fp4 beside FP8"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        (
            {"quant_method": "fp8", "weight_block_size": [0, 128]},
            r"weight_block_size \(0, 128\) is not positive",
        ),
        ({"quant_method": "fp8", "ignored_layers": ["re:("]}, r"config\.json: '\(' is no regular expression"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo W4A8_AWQ in groups of 16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "NVFP4 in groups of 32"),
        (compressed("pack-quantized", INT4 | {"num_bits": 8}), "pack-quantized of symmetric int8 per group"),
        (
            compressed("int-quantized", {"num_bits": 8, "type": "int"}),
            "int-quantized of symmetric int8 per tensor",
        ),
        (compressed("marlin-24", INT4), "marlin-24 of symmetric int4 per group is not supported"),
        (
            compressed("pack-quantized", INT4, sparsity_config={"format": "sparse-24-bitmask"}),
            "sparse weights",
        ),
        (compressed("pack-quantized", INT4, transform_config={"config_groups": {}}), "under a transform"),
        (compressed("pack-quantized", {"num_bits": "4"}), r"num_bits"),
        (compressed("pack-quantized", INT4 | {"group_size": 0}), "group_size 0 of groups is not positive"),
        (
            compressed(
                "float-quantized",
                {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 0]},
            ),
            r"`int` >= 1 - at `\$\.config_groups.*block_structure",
        ),
        ({"config_groups": {"a": {"targets": [], "weights": "\ud800"}}}, "'utf-8' codec"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refusal:
        parse_scheme(values, SOURCE)
    assert str(refusal.value).startswith("config.json: ")


def write(directory: Path, name: str, values: object) -> None:
    (directory / name).write_text(json.dumps(values))


def test_where_the_configuration_stands(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8"}
    write(tmp_path, "config.json", {"hidden_size": 8, "time_step_limit": [0.0, float("inf")]})
    assert read_scheme(tmp_path) is None
    for config in (
        {"quantization_config": fp8},
        {"compression_config": compressed("float-quantized", FP8)},
        {"text_config": {"quantization_config": fp8}, "vision_config": {}},
    ):
        write(tmp_path, "config.json", config)
        scheme = read_scheme(tmp_path)
        assert scheme is not None
        assert scheme.format(EXPERT) == Fp8Format(None)


def test_model_optimizer_has_a_file_of_its_own(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {})
    quantization = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(tmp_path, "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": quantization})
    scheme = read_scheme(tmp_path)
    assert scheme is not None
    assert scheme.format(EXPERT) == Fp4Format("nvfp4-modelopt")
    assert scheme.format("lm_head") is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read: Expected `object`"),
        ('{"quantization_config": 3}', r"cannot be read: Expected `object \| null`"),
        ('{"quantization_config": {"quant_method": []}}', r"quantization by \[\] is none of"),
    ],
)
def test_damaged_configurations(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidRequest, match=reason):
        read_scheme(tmp_path)

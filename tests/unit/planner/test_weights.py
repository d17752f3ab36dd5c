"""What weights take: against transformers, published checkpoints, and counts by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.planner import mix, precision
from paceline.planner.mix import Mix
from paceline.planner.model import SHAPES, Model, find, shipped
from paceline.planner.parallel import Parallel, of_stage
from paceline.planner.units import GB, GIB
from paceline.planner.weights import local_bytes, whole_bytes
from tests.unit.planner import shapes

FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def total(model: Model, chosen: Mix, *, mtp: bool) -> int:
    return sum(whole_bytes(tensor, chosen) for tensor in model.served(mtp=mtp))


def parameters(model: Model, *, mtp: bool = False) -> int:
    return sum(tensor.parameters for tensor in model.served(mtp=mtp))


@pytest.mark.parametrize("name", shipped())
def test_parameters_are_those_of_transformers(name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config: dict[str, Any] = json.loads((SHAPES / name / "config.json").read_text())
    config = config.get("text_config", config)
    kind = config.pop("model_type").replace("kimi_k2", "deepseek_v3")
    config.pop("quantization_config", None)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**config))  # type: ignore[no-untyped-call]
    biases = sum(b.numel() for key, b in reference.named_buffers() if key.endswith("e_score_correction_bias"))
    assert parameters(find(name)) == sum(p.numel() for p in reference.parameters()) + biases


def test_parameters_of_a_tied_model(tmp_path: Path) -> None:
    assert parameters(shapes.read(tmp_path, shapes.SMOLLM2_135M)) == 134_515_008


def test_glm_52_takes_the_bytes_that_its_checkpoints_are_reported_to_take() -> None:
    model = find("glm-5.2")
    assert parameters(model, mtp=True) == 753_329_940_480
    assert total(model, mix.bf16(), mtp=True) == 1_506_659_919_872
    assert total(model, mix.fp8(), mtp=True) / GB == pytest.approx(755, abs=1)
    assert total(model, mix.int4_experts(128, "fp8"), mtp=True) / GB == pytest.approx(399.7, abs=0.05)


def test_deepseek_v3_takes_the_bytes_of_its_files() -> None:
    model = find("deepseek-v3")
    # The files hold embedding and head once more, for the layer for multi-token prediction, and headers.
    copies = 2 * 129_280 * 7168 * 2
    files = total(model, mix.native(model), mtp=True) + copies
    assert files == pytest.approx(688_586_727_753, rel=1e-4)


def test_kimi_k25_takes_the_bytes_of_its_files() -> None:
    model = find("kimi-k2.5")
    native = mix.native(model)
    experts = sum(whole_bytes(t, native) for t in model.tensors if t.kind == "routed experts")
    assert experts / GIB == pytest.approx(3 * (157.50 + 19.69), abs=0.02)
    vision = 0.878  # GiB
    assert total(model, native, mtp=False) / GIB + vision == pytest.approx(554.27, abs=0.01)


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model."])
def test_ignored_modules_may_be_listed_by_any_name_that_files_have(prefix: str, tmp_path: Path) -> None:
    """`paceline quantize` lists all that it keeps, by the names in the files."""
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": [f"{prefix}layers.{i}.self_attn.o_proj" for i in range(2)],
    }
    model = shapes.read(tmp_path, shapes.TINY_LATENT | {"quantization_config": quantization})
    native = mix.native(model)
    stored = {t.module: native.precision(t).name for t in model.served(mtp=False) if t.matrix}
    assert stored["layers.0.self_attn.o_proj"] == stored["layers.1.self_attn.o_proj"] == "BF16"
    assert (
        stored["layers.0.self_attn.q_b_proj"] == stored["layers.1.mlp.experts.0.up_proj"] == "INT4, group 32"
    )


def test_bytes_of_a_matrix() -> None:
    assert precision.BF16.bytes(3, 5) == 30
    assert precision.FP8.bytes(129, 256) == 129 * 256 + 2 * 2 * 4
    assert precision.int4(32).bytes(8, 64) == 8 * 64 // 2 + 8 * 2 * 2
    assert precision.int4(128, zero_bits=4).bytes(8, 128) == 8 * 64 + 8 * 20 // 8
    assert precision.int4(None).bytes(8, 64) == 8 * 32 + 8 * 2


def test_native_is_what_the_configuration_says(tmp_path: Path) -> None:
    quantised = FP8_BLOCKS | {"modules_to_not_convert": ["model.layers.0.self_attn.o_proj"]}
    model = shapes.read(tmp_path, shapes.TINY_LATENT | {"quantization_config": quantised})
    stored = mix.native(model)
    bits = {tensor.module: stored.precision(tensor).bits for tensor in model.tensors if tensor.matrix}
    kept = {module for module, size in bits.items() if size == 16}
    assert kept == {"lm_head", "layers.0.self_attn.o_proj", "layers.2.eh_proj"}
    assert bits["layers.1.mlp.experts.0.up_proj"] == bits["layers.1.self_attn.q_a_proj"] == 8


def test_int4_is_experts_or_every_linear_layer(tmp_path: Path) -> None:
    dense = shapes.read(tmp_path, shapes.TINY)
    chosen = mix.choose("int4", 32, None, dense)
    attention, mlp = 3 * (64 * 64 * 2 + 16 * 64 * 2), 3 * 3 * 96 * 64
    others = 2 * 100 * 64 + 7 * 64
    assert total(dense, chosen, mtp=False) == (attention + mlp) * 9 // 16 + others * 2
    sparse = shapes.read(tmp_path, shapes.TINY_LATENT)
    chosen = mix.choose("int4", 32, "bf16", sparse)
    bits = {tensor.kind: chosen.precision(tensor).bits for tensor in sparse.tensors if tensor.matrix}
    assert {kind for kind, size in bits.items() if size == 4} == {"routed experts"}


def test_tensor_parallelism_cuts_heads_columns_and_vocabulary(tmp_path: Path) -> None:
    """One layer of TINY over 4 ranks: 2 of 8 heads of 8, one of 2 KV heads, 24 of 96 columns, 25 of 100 words."""
    model = shapes.read(tmp_path, shapes.TINY)
    layer = 2 * (16 * 64) + 2 * (8 * 64) + 3 * (24 * 64) + 2 * 64
    expected = 3 * layer + 2 * 25 * 64 + 64
    assert local_bytes(model.served(mtp=False), mix.bf16(), Parallel(tp=4)) == 2 * expected


def test_ranks_keep_what_compresses_and_share_out_experts(tmp_path: Path) -> None:
    model = shapes.read(tmp_path, shapes.TINY_LATENT)
    layer = [tensor for tensor in model.tensors if tensor.layer == 1]
    whole = 16 * 64 + 132 * 64 + 16 + 128 + 2 * 64 + 8 * 64  # q_a, kv_a, norms, router
    heads = 12 * 16 + 16 * 128 + 64 * 8  # q_b, kv_b and o of one of 4 heads
    shared, expert = 3 * 8 * 64, 3 * 32 * 64
    bias = 8 * 4
    for parallel, experts in (
        (Parallel(tp=4), 8 * expert // 4),
        (Parallel(tp=4, ep=4), 2 * expert),
        (Parallel(tp=4, ep=2), 4 * expert // 2),
        (Parallel(tp=4, dp=2, ep=8), expert),
    ):
        assert local_bytes(layer, mix.bf16(), parallel) == 2 * (whole + heads + shared + experts) + bias


def test_stages_hold_their_layers_and_the_ends(tmp_path: Path) -> None:
    model = shapes.read(tmp_path, shapes.TINY)
    stages = Parallel(pp=2).stages(3)
    assert stages == (range(2), range(2, 3))
    first, last = (
        {tensor.module for tensor in of_stage(model.tensors, i, stages, tied=False)} for i in (0, 1)
    )
    assert "embed_tokens" in first
    assert {"norm", "lm_head"} <= last
    assert not first & last
    tied = of_stage(model.tensors, 1, stages, tied=True)
    assert "embed_tokens" in {tensor.module for tensor in tied}


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ({"tp": 3}, "--tp 3 does not divide the 4 attention heads"),
        ({"tp": 4, "ep": 3}, "--ep 3 does not divide tp x dp = 4"),
        ({"pp": 3}, "--pp 3 is more than the model's 2 layers"),
        ({"dp": 16, "ep": 16}, "--ep 16 does not divide the 8 experts"),
    ],
)
def test_cuts_that_do_not_come_out_even(tmp_path: Path, parallel: dict[str, int], message: str) -> None:
    model = shapes.read(tmp_path, shapes.TINY_LATENT)
    with pytest.raises(InvalidRequest) as caught:
        Parallel(**parallel).check(model.config)
    assert str(caught.value) == message

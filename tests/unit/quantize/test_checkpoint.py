"""Whole checkpoints: what is in them, that other programs read them, and what the report says."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from paceline.contracts.errors import InvalidRequest
from paceline.model.files import locate
from paceline.model.quantized.configuration import read_scheme
from paceline.model.quantized.matrices import open_matrix
from paceline.model.safetensors import SafetensorsDirectory
from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.unit.engine_torch.models import start_engine
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.quantize.checkpoints import (
    HIDDEN,
    INNER,
    dense_tensors,
    ignore,
    load,
    read_config,
    save,
    weights,
)

library: Any = transformers  # typed only in part

EXPERTS = "model.layers.0.mlp.experts."


def moe_tensors() -> dict[str, Tensor]:
    return dense_tensors(1) | {
        "model.layers.0.mlp.gate.weight": weights(4, HIDDEN, seed=20),
        "model.layers.0.mlp.gate.e_score_correction_bias": weights(4, seed=21, dtype=torch.float32),
        "model.layers.0.mlp.shared_experts.up_proj.weight": weights(INNER, HIDDEN, seed=22),
        EXPERTS + "0.up_proj.weight": weights(INNER, HIDDEN, seed=23),
        EXPERTS + "1.up_proj.weight": weights(INNER, HIDDEN, seed=24),
    }


def fp8_tensors(name: str, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """A DeepSeek FP8 matrix, and the values that it stands for."""
    codes = weights(INNER, HIDDEN, seed=seed, dtype=torch.float32).to(torch.float8_e4m3fn)
    scales = torch.rand((3, 2), generator=torch.Generator().manual_seed(seed)) + 0.5
    values = _dequantize_fp8_weight(codes, scales, [128, 128], torch.float32)
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}, values


def decoded(directory: Path, module: str) -> Tensor:
    """A matrix of a finished checkpoint as the engine reads it."""
    scheme = read_scheme(directory)
    assert scheme is not None
    shape = (HIDDEN, INNER) if module.endswith("down_proj") else (INNER, HIDDEN)
    matrix = open_matrix(SafetensorsDirectory(directory), module, shape, scheme)
    return torch.from_numpy(matrix.float32(0, shape[0]))


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected.float()).norm() / expected.float().norm())


def test_transformers_and_the_engine_run_int4(tmp_path: Path) -> None:
    """Logits of both are those of the model whose matrices hold what the checkpoint stands for."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    model = library.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "int4", Options("int4", group=64), ignore)
    found = library.AutoModelForCausalLM.from_pretrained(tmp_path / "int4", dtype=torch.float32)
    scheme = read_scheme(tmp_path / "int4")
    assert scheme is not None
    source = SafetensorsDirectory(tmp_path / "int4")
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        original = model(tokens).logits
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name != "lm_head":
                rows, columns = module.weight.shape
                matrix = open_matrix(source, name, (rows, columns), scheme)
                module.weight.copy_(torch.from_numpy(matrix.float32(0, rows)))
        expected = model(tokens).logits
        torch.testing.assert_close(found(tokens).logits, expected, rtol=1e-4, atol=1e-4)
    engine = start_engine(locate(str(tmp_path / "int4")))
    ours = torch.from_numpy(engine.execute(make_step(Rows(range(24), 0, [3]))))
    torch.testing.assert_close(ours, expected[0], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(original, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        (Options("int4"), 0.07, 0.1),
        (Options("fp8"), 0.02, 0.03),
        (Options("fp8", fp8="channel"), 0.02, 0.03),
    ],
)
def test_the_report_says_how_far_the_weights_are(
    options: Options, low: float, high: float, tmp_path: Path
) -> None:
    tensors = dense_tensors(2)
    source = save(tmp_path / "source", tensors)
    report = quantize(source, tmp_path / "out", options, ignore)
    squared = squared_error = largest = 0.0
    for part in ("self_attn.q_proj", "mlp.down_proj"):
        original = tensors[f"model.layers.1.{part}.weight"].double()
        error = decoded(tmp_path / "out", f"model.layers.1.{part}").double() - original
        squared += original.square().sum().item()
        squared_error += error.square().sum().item()
        largest = max(largest, error.abs().max().item())
    layer = report.layers["layer 1"]
    assert layer.errors.weights == 2 * INNER * HIDDEN
    assert layer.errors.relative == pytest.approx((squared_error / squared) ** 0.5, rel=1e-5)
    assert layer.errors.largest == pytest.approx(largest, rel=1e-6)
    assert low < layer.errors.relative < high
    found = load(tmp_path / "out")
    stored = {n: t.nbytes for n, t in found.items() if "layers.1." in n}
    assert layer.output_bytes == sum(stored.values())
    quantized_bytes = layer.output_bytes - stored["model.layers.1.input_layernorm.weight"]
    assert layer.bits_per_weight == 8 * quantized_bytes / layer.errors.weights
    assert report.total.source_bytes == sum(t.nbytes for t in tensors.values())
    assert report.total.output_bytes == sum(t.nbytes for t in found.values())


def test_what_is_kept_is_kept_to_the_byte(tmp_path: Path) -> None:
    tensors = moe_tensors()
    out = tmp_path / "out"
    source = save(tmp_path / "source", tensors, eos_token_id=2)
    report = quantize(source, out, Options("int4", keep=("down_proj",), experts_only=False), ignore)
    found = load(out)
    kept = {"model.embed_tokens", "model.layers.0.mlp.gate", "model.layers.0.mlp.down_proj"}
    assert set(report.kept) == kept
    assert set(read_config(out)["quantization_config"]["ignore"]) == kept | {"lm_head"}
    assert read_config(out)["eos_token_id"] == 2
    unchanged = {n for n in found if n in tensors}
    assert unchanged == {f"{m}.weight" for m in kept} | {
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.gate.e_score_correction_bias",
    }
    for name in unchanged:
        assert found[name].dtype == tensors[name].dtype
        assert torch.equal(found[name], tensors[name])
    assert sorted(p.name for p in out.iterdir() if not p.name.startswith(".")) == [
        "config.json",
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


def test_experts_only_is_the_mix_of_kimi(tmp_path: Path) -> None:
    save(tmp_path / "source", moe_tensors())
    quantize(tmp_path / "source", tmp_path / "out", Options("int4", experts_only=True), ignore)
    packed = [n for n in load(tmp_path / "out") if n.endswith("weight_packed")]
    assert packed == [f"{EXPERTS}{i}.up_proj.weight_packed" for i in (0, 1)]
    assert relative(decoded(tmp_path / "out", EXPERTS + "1.up_proj"), weights(INNER, HIDDEN, seed=24)) < 0.1


def test_fp8_becomes_int4_and_what_is_kept_bfloat16(tmp_path: Path) -> None:
    """Scales may lie in another file than their weight, as DeepSeek's do."""
    expert, expert_values = fp8_tensors(EXPERTS + "0.up_proj", 1)
    attention, attention_values = fp8_tensors("model.layers.0.self_attn.q_proj", 2)
    scale = {EXPERTS + "0.up_proj.weight_scale_inv": expert.pop(EXPERTS + "0.up_proj.weight_scale_inv")}
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    source = save(tmp_path / "source", expert, attention | scale, quantization_config=config)
    out = tmp_path / "out"
    report = quantize(source, out, Options("int4", experts_only=True), ignore)
    found = load(out)
    assert set(found) == {f"{EXPERTS}0.up_proj.weight_{k}" for k in ("packed", "scale", "shape")} | {
        "model.layers.0.self_attn.q_proj.weight"
    }
    assert torch.equal(found["model.layers.0.self_attn.q_proj.weight"], attention_values.bfloat16())
    error = relative(decoded(out, EXPERTS + "0.up_proj"), expert_values)
    assert 0.05 < error < 0.1
    assert report.total.errors.relative == pytest.approx(error, rel=1e-5)
    assert read_config(out)["quantization_config"]["quant_method"] == "compressed-tensors"


def test_a_matrix_that_groups_do_not_divide_is_kept(tmp_path: Path) -> None:
    odd = {"model.layers.0.mlp.up_proj.weight": weights(8, 96, seed=5)}
    save(tmp_path / "source", dense_tensors(1) | odd)
    report = quantize(tmp_path / "source", tmp_path / "out", Options("int4", group=64), ignore)
    assert report.kept["model.layers.0.mlp.up_proj"] == "its 96 columns are no multiple of 64"
    assert torch.equal(load(tmp_path / "out")[next(iter(odd))], odd["model.layers.0.mlp.up_proj.weight"])


def test_files_stay_below_their_limit(tmp_path: Path) -> None:
    """But for a tensor that is larger alone."""
    large = {"model.layers.0.mlp.kept.weight": weights(1024, 1024, seed=9)}
    source = save(tmp_path / "source", dense_tensors(12), large)
    heard: list[tuple[int, int]] = []
    options = Options("fp8", keep=("kept",), shard_bytes=1_000_000)
    quantize(source, tmp_path / "out", options, lambda done, total: heard.append((done, total)))
    names = [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]
    sizes = [(tmp_path / "out" / name).stat().st_size for name in names]
    assert all(size < 1_010_000 for size in sizes[:3])
    assert sizes[0] > 750_000
    assert 2 * 1024 * 1024 < sizes[3] < 2 * 1024 * 1024 + 10_000
    assert len(load(tmp_path / "out")) == 1 + 12 * 5 + 1
    assert heard == sorted(heard)
    assert heard[-1] == (sum(t.nbytes for t in (dense_tensors(12) | large).values()),) * 2


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        (
            {"model.layers.0.feed_forward.experts.gate_up_proj": weights(2, 64, 64, seed=1)},
            {},
            "experts.gate_up_proj holds all experts of a layer",
        ),
        (
            {"model.layers.0.mlp.up_proj.weight": torch.full((8, 64), torch.nan)},
            {},
            r"part-0\.safetensors: tensor model.layers.0.mlp.up_proj.weight holds NaN",
        ),
        (
            {"a.weight": torch.ones(8, 64), "a.weight_scale": torch.ones(8, 2)},
            {},
            "tensor a.weight_scale would be there twice",
        ),
        (
            {"model.layers.0.mlp.up_proj.weight": torch.zeros((8, 64), dtype=torch.float64)},
            {},
            "model.layers.0.mlp.up_proj.weight has type F64",
        ),
        (
            {"model.layers.0.mlp.up_proj.weight": torch.zeros((8, 64)).to(torch.float8_e4m3fn)},
            {},
            "config.json does not say how it is scaled",
        ),
        ({"model.norm.weight": torch.ones(64)}, {}, "no matrix is left"),
        (
            dense_tensors(1),
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "is quantized already",
        ),
    ],
)
def test_sources_that_cannot_be_quantized(
    tensors: dict[str, Tensor], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = save(tmp_path / "source", tensors, **config)
    with pytest.raises(InvalidRequest, match=message):
        quantize(source, tmp_path / "out", Options("int4"), ignore)
    assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.parametrize("scale", [1e-29, 1e25])
@pytest.mark.parametrize(
    "options", [Options("int4", group=64), Options("fp8"), Options("fp8", fp8="channel")]
)
def test_errors_are_right_where_squares_leave_float32(scale: float, options: Options, tmp_path: Path) -> None:
    usual, scaled = (
        save(tmp_path / name, {"a.weight": weights(64, 256, seed=1, dtype=torch.float32) * factor})
        for name, factor in (("usual", 1.0), ("scaled", scale))
    )
    expected = quantize(usual, tmp_path / "out", options, ignore).total.errors
    found = quantize(scaled, tmp_path / "scaled-out", options, ignore).total.errors
    assert found.relative == pytest.approx(expected.relative, rel=0.03)
    assert 0 < found.relative < 0.1


def test_empty_tensors_and_single_numbers_stay_as_they_are(tmp_path: Path) -> None:
    odd = {
        "empty.weight": torch.zeros(0, 32),
        "narrow.weight": torch.zeros(8, 0, dtype=torch.bfloat16),
        "model.layers.0.mlp.experts.bias": torch.zeros(2, 0, 3),
        "one.weight": torch.tensor(3.0),
        "whole.weight": torch.ones(3, 32, dtype=torch.int64),
    }
    source = save(tmp_path / "source", dense_tensors(1) | odd)
    quantize(source, tmp_path / "out", Options("fp8"), ignore)
    found = load(tmp_path / "out")
    for name, tensor in odd.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_a_pattern_that_keeps_nothing_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "source", dense_tensors(1))
    for pattern in ("dwn_proj", "input_layernorm"):
        with pytest.raises(InvalidRequest, match=f"--keep {pattern} matches no matrix of"):
            quantize(source, tmp_path / "out", Options("int4", keep=("down_proj", pattern)), ignore)
    assert not (tmp_path / "out").exists()


def test_the_configuration_may_hold_what_no_encoding_has(tmp_path: Path) -> None:
    source = save(tmp_path / "source", dense_tensors(1), greeting="h\u00e9 \ud800")
    quantize(source, tmp_path / "out", Options("fp8"), ignore)
    assert read_config(tmp_path / "out")["greeting"] == "h\u00e9 \ud800"


def test_experts_of_llama4_get_names_of_their_own(tmp_path: Path) -> None:
    """Its file has all experts in one tensor [experts, in, out], the halves of gate and up side by side."""
    experts = "language_model.model.layers.1.feed_forward.experts."
    gate_up, down = weights(2, HIDDEN, 2 * INNER, seed=1), weights(2, INNER, HIDDEN, seed=2)
    source = save(
        tmp_path / "source",
        {experts + "gate_up_proj": gate_up, experts + "down_proj": down},
        model_type="llama4",
    )
    out = tmp_path / "out"
    report = quantize(source, out, Options("fp8", keep=("1.gate_proj",)), ignore)
    modules = {f"{experts}{e}.{kind}_proj" for e in (0, 1) for kind in ("gate", "up", "down")}
    assert {n.removesuffix(".weight") for n in load(out) if n.endswith(".weight")} == modules
    assert set(report.kept) == {experts + "1.gate_proj"}
    assert torch.equal(load(out)[experts + "1.gate_proj.weight"], gate_up[1, :, :INNER].T)
    for module, expected in (
        ("0.gate_proj", gate_up[0, :, :INNER].T),
        ("1.up_proj", gate_up[1, :, INNER:].T),
        ("1.down_proj", down[1].T),
    ):
        assert 0.01 < relative(decoded(out, experts + module), expected) < 0.03
    assert report.total.source_bytes == gate_up.nbytes + down.nbytes


def test_fused_experts_are_kept_on_request(tmp_path: Path) -> None:
    fused = {"model.layers.0.feed_forward.experts.gate_up_proj": weights(2, 64, 64, seed=1)}
    save(tmp_path / "source", dense_tensors(1) | fused)
    quantize(tmp_path / "source", tmp_path / "out", Options("int4", keep=("*experts*",)), ignore)
    assert torch.equal(load(tmp_path / "out")[next(iter(fused))], next(iter(fused.values())))


def test_a_truncated_shard_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "source", dense_tensors(1))
    shard = source / "part-0.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InvalidRequest, match=r"part-0\.safetensors is truncated"):
        quantize(source, tmp_path / "out", Options("int4"), ignore)

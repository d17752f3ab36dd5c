"""A packed model has every weight in its place, and what the native step does not run is refused before."""

import ctypes
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu.importance import measure_importance
from paceline.engine.cpu.library import PlFormat, PlMatrix
from paceline.engine.cpu.packing import Memory, Packer, Placed
from paceline.engine.cpu.support import check_model, check_precision, runs
from paceline.engine.cpu.weights import PackedModel, Weights, choose_format, pack_model
from paceline.model.config import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    ModelConfig,
    SoftmaxRouter,
    Temperature,
    Window,
    read_config,
)
from paceline.model.files import ModelFiles
from paceline.model.floats import Float32
from paceline.model.gguf import GgufFile
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.rope import inverse_frequencies
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored, open_weights
from tests.unit.engine_cpu.test_packing import blocks, floats, int4, library, unpack
from tests.unit.engine_cpu.test_packing import weights as values
from tests.unit.engine_torch.models import save_model
from tests.unit.engine_torch.test_gguf import convert
from tests.unit.model.files import write_gguf

_PARTS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def pack(files: ModelFiles, weights: Weights = "auto", threads: int = 2) -> PackedModel:
    config = read_config(files)
    stored = open_weights(files, config)
    check_model(config, stored, files.path)
    return pack_model(config, stored, weights, library(), threads=threads, progress=lambda done, total: None)


def read(matrix: PlMatrix) -> Float32:
    format_ = PlFormat(matrix.format)
    size = Packer(library()).size(format_, matrix.rows, matrix.columns)
    found = unpack(ctypes.string_at(matrix.data, size), format_, matrix.rows, matrix.columns)
    return found[: matrix.rows]


def read_vector(address: int, count: int) -> Float32:
    return np.frombuffer(ctypes.string_at(address, 4 * count), np.float32)


@pytest.mark.parametrize("name", ["llama", "llama3-rope", "qwen2", "qwen3"])
@pytest.mark.parametrize("quant", ["hf", "F16", "Q8_0", "Q4_1"])
def test_every_weight_is_in_its_place(name: str, quant: str, tmp_path: Path) -> None:
    """Biases, norms of heads, heads of their own, rows that llama.cpp permutes, several formats in one file."""
    reference = save_model(name, tmp_path / "hf")
    files = reference.files if quant == "hf" else convert(reference, tmp_path / "m.gguf", quant)
    config = read_config(files)
    stored = open_weights(files, config)
    left = {n: t.float32(0, len(t.arrays[0])).reshape(t.shape) for n, t in stored.items()}
    packed = pack(files)
    model = packed.model
    attention = config.layers[0].attention
    assert isinstance(attention, GroupedAttention)

    def check(matrix: PlMatrix, module: str) -> None:
        assert matrix.data % 64 == 0
        assert np.array_equal(read(matrix), left.pop(module + ".weight"))
        bias = left.pop(module + ".bias", None)
        assert (matrix.bias is None) == (bias is None)
        assert bias is None or np.array_equal(read_vector(matrix.bias, matrix.rows), bias)

    for i in range(model.layers):
        for field, part in _PARTS.items():
            found, module = getattr(model.layer[i], field), f"layers.{i}.{part}"
            if isinstance(found, PlMatrix):
                check(found, module)
            elif found is None:
                assert module + ".weight" not in left
            else:
                expected = left.pop(module + ".weight")
                assert np.array_equal(read_vector(found, len(expected)), expected)
    if config.tied_head:
        assert (model.head.data, model.head.rows) == (model.embedding.data, model.embedding.rows)
    else:
        check(model.head, "lm_head")
    check(model.embedding, "embed_tokens")
    assert np.array_equal(read_vector(model.norm, config.hidden), left.pop("norm.weight"))
    assert not left

    assert attention.rope is not None
    frequencies, scale = inverse_frequencies(attention.rope)
    assert model.rope_dim == attention.rope.dim
    assert np.array_equal(
        read_vector(model.rope_frequencies, model.rope_dim // 2), frequencies.astype(np.float32)
    )
    assert (model.rope_scale, model.rope_interleaved) == (np.float32(scale), 0)
    shape = (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.vocab)
    assert shape == (3, 96, 6, 2, 16, 160)
    assert (model.intermediate, model.eps) == (160, np.float32(config.norm_eps))


@pytest.mark.parametrize(
    ("stored", "auto", "int8", "int4", "int4_head"),
    [
        (floats("BF16", values("bell")), "BF16", "I8_F16", "U4_F16_MIN", "I8_F16"),
        (floats("F16", values("bell")), "F16", "I8_F16", "U4_F16_MIN", "I8_F16"),
        (floats("F32", values("bell")), "F32", "I8_F16", "U4_F16_MIN", "I8_F16"),
        (blocks("Q8_0", 32, 64), "I8_F16", "I8_F16", "U4_F16_MIN", "I8_F16"),
        (blocks("Q6_K", 32, 256), "I8_F32_MIN_16", "I8_F32_MIN_16", "U4_F16_MIN", "I8_F32_MIN_16"),
        (blocks("Q5_1", 32, 64), "I8_F32_MIN", "I8_F32_MIN", "U4_F16_MIN", "I8_F32_MIN"),
        (blocks("Q4_1", 32, 64), "U4_F16_MIN", "I8_F16", "U4_F16_MIN", "U4_F16_MIN"),
        (blocks("Q4_0", 32, 64), "U4_F16", "I8_F16", "U4_F16", "U4_F16"),
        (blocks("Q4_K", 32, 256), "U4_F32_MIN", "I8_F16", "U4_F32_MIN", "U4_F32_MIN"),
        (int4("F32", 64, symmetric=True), "U4_F32", "I8_F16", "U4_F32", "U4_F32"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.storage,
)
def test_formats_by_precision(stored: StoredTensor, auto: str, int8: str, int4: str, int4_head: str) -> None:
    names = ("layers.0.mlp.up_proj.weight", "embed_tokens.weight", "lm_head.weight")
    wanted: dict[Weights, tuple[str, str]] = {
        "auto": (auto, auto),
        "float32": ("F32", "F32"),
        "bfloat16": ("BF16", "BF16"),
        "int8": (int8, int8),
        "int4": (int4, int4_head),
    }
    for weights, (inner, outer) in wanted.items():
        found = [choose_format(name, stored, weights).name for name in names]
        assert found == [inner, outer, outer], weights


def test_rows_that_no_groups_fit_are_refused_by_name() -> None:
    stored = floats("BF16", values("bell", 16, 40))
    assert choose_format("w", stored, "auto") is PlFormat.BF16
    with pytest.raises(InvalidRequest, match=r"^w has 40 columns, which cannot be cut into groups of 32"):
        choose_format("w", stored, "int8")
    check_precision({"w": stored}, "bfloat16", Path("m"))
    with pytest.raises(InvalidRequest, match=r"^m: w has 40 columns, which"):
        check_precision({"w": stored}, "int8", Path("m"))


def test_requested_precisions_are_close(tmp_path: Path) -> None:
    """All matrices of a model, of which each precision keeps as much as it can."""
    files = save_model("qwen3", tmp_path).files
    exact = pack(files)
    for weights, tolerance in (("bfloat16", 2e-3), ("int8", 6e-3), ("int4", 9e-2)):
        packed = pack(files, weights)  # type: ignore[arg-type]
        for field in ("q", "k", "v", "out", "gate", "up", "down"):
            wanted, found = (
                read(getattr(exact.model.layer[1], field)),
                read(getattr(packed.model.layer[1], field)),
            )
            error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            assert tolerance / 10 < error < tolerance, (weights, field)


def test_a_sample_is_read_for_codes_of_four_bits_alone(tmp_path: Path) -> None:
    """And makes products with its inputs more exact."""
    reference = save_model("llama", tmp_path / "hf")
    config = read_config(reference.files)
    stored = open_weights(reference.files, config)
    calls = []

    def sample() -> list[int]:
        calls.append(1)
        return list(range(3, 67))

    def packed(weights: Weights, files: ModelFiles = reference.files) -> PackedModel:
        return pack_model(
            config,
            open_weights(files, config),
            weights,
            library(),
            threads=1,
            progress=lambda done, total: None,
            sample=sample,
        )

    packed("auto"), packed("int8"), packed("int4", convert(reference, tmp_path / "m.gguf", "Q4_1"))
    assert not calls
    better, simple = packed("int4"), pack(reference.files, "int4")
    assert len(calls) == 1
    importance = measure_importance(config, stored, sample())
    for field, part in _PARTS.items():
        if isinstance(getattr(better.model.layer[1], field), PlMatrix):
            name = f"layers.1.{part}.weight"
            exact = stored[name].float32(0, stored[name].shape[0])
            errors = [
                float(((read(getattr(each.model.layer[1], field)) - exact) ** 2 @ importance[name]).sum())
                for each in (better, simple)
            ]
            assert errors[0] < errors[1], field


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelConfig, Mapping[str, Stored]]:
    files = save_model("llama", tmp_path_factory.mktemp("llama")).files
    config = read_config(files)
    return config, open_weights(files, config)


_EXPERTS = ExpertMlp(experts=4, chosen=2, intermediate=32, router=SoftmaxRouter(renormalise=True))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mlp": _EXPERTS}, "mixtures of experts"),
        ({"span": Window(64)}, "windows or chunks of attention"),
        ({"sinks": True}, "attention sinks"),
        ({"out_bias": True}, "a bias behind attention"),
        ({"qk_norm": "l2"}, "heads that are normed without a weight"),
        ({"temperature": Temperature(8192, 0.1)}, "queries that grow with their position"),
        ({"head_dim": 20}, "heads of 20, only multiples of 8 from 16 to 256"),
        ({"head_dim": 8}, "heads of 8, only multiples of 8 from 16 to 256"),
        ({"head_dim": 264}, "heads of 264, only multiples of 8 from 16 to 256"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_layers_that_do_not_run(
    change: dict[str, Any], reason: str, llama: tuple[ModelConfig, Mapping[str, Stored]]
) -> None:
    config, stored = llama
    assert runs(config, stored) is None
    layer = config.layers[0]
    if "mlp" in change:
        changed = replace(layer, **change)
    else:
        changed = replace(layer, attention=replace(layer.attention, **change))
    for layers in ((changed,) * 3, (layer, layer, changed)):
        assert runs(replace(config, layers=layers), stored) == reason
    with pytest.raises(InvalidRequest, match=rf"^m\.gguf: the cpu engine does not run {reason}"):
        check_model(replace(config, layers=(changed,)), stored, Path("m.gguf"))


def test_layers_have_one_shape(llama: tuple[ModelConfig, Mapping[str, Stored]]) -> None:
    config, stored = llama
    other = replace(config.layers[0], mlp=DenseMlp(64))
    assert runs(replace(config, layers=(*config.layers[1:], other)), stored) == "layers that differ"


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (
            replace(int4("BF16", 32, symmetric=True), columns=np.arange(256)),
            "w, which is GPTQ with act-order",
        ),
        (replace(int4("BF16", 32, symmetric=True), group=16), "w, whose INT4 groups have 16 columns"),
        (
            Fp8Matrix(np.zeros((32, 32), np.uint8), np.ones((1, 1), np.float32), (32, 32), 0),
            r"w, which is stored as e4m3 in blocks of \(32, 32\)",
        ),
    ],
    ids=["act-order", "group", "fp8"],
)
def test_matrices_that_do_not_run(
    matrix: Stored, reason: str, llama: tuple[ModelConfig, Mapping[str, Stored]]
) -> None:
    config, stored = llama
    with pytest.raises(InvalidRequest, match=reason):
        check_model(config, {**stored, "w": matrix}, Path("m"))


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_truncated_files_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    reference = save_model("llama", tmp_path / "hf")
    files = reference.files if kind == "hf" else convert(reference, tmp_path / "m.gguf", "Q8_0")
    weights = files.path if kind == "gguf" else files.path / "model.safetensors"
    whole = tmp_path / "whole"
    shutil.copy(weights, whole)
    for length in np.linspace(0, whole.stat().st_size - 1, 40).astype(int):
        with weights.open("wb") as f:
            f.write(whole.read_bytes()[:length])
        with pytest.raises(InvalidRequest, match=str(weights)):
            pack(files)


def test_pages_of_the_file_are_given_back(tmp_path: Path) -> None:
    """While the file is still open: weights do not lie in memory twice."""
    original = np.ones((8192, 512), np.float32)
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, {"t": ("F16", original)})
    stored = GgufFile(path).tensor("t")
    stored.data.max()
    assert resident(path) >= stored.nbytes
    packer = Packer(library())
    memory = Memory(packer.size(PlFormat.F16, *stored.shape))
    packer.pack([Placed("t", stored, PlFormat.F16, 0)], memory, 2, lambda done, total: None)
    assert resident(path) <= stored.nbytes // 8
    assert (memory.array(0, 4) == np.array([1, 1], np.float16).view(np.float32)).all()


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("only Linux says what is in memory")
    found, inside = 0, False
    for line in smaps.read_text().splitlines():
        if line.split(" ", 1)[0].count("-") == 1:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found

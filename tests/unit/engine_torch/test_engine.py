"""The engine's life, its number formats, and a real model."""

import shutil
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline.contracts.errors import InvalidRequest
from paceline.engine.layout import KvDtype, PageGroup, PageLayout, Plane
from paceline.engine.registry import ComputeDtype, open_engine
from paceline.engine.torch.linear import Linear
from paceline.model.files import ModelFiles, locate
from paceline.model.pull import ensure_default
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer
from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.unit.engine_torch.models import VOCAB, Reference, save_model, start_engine
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import prompt


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


def test_configuration_is_known_before_the_weights(llama: Reference) -> None:
    engine = open_engine("torch", llama.files, kv_dtype="bfloat16")
    assert (engine.name, engine.vocab, engine.context) == ("torch", VOCAB, 512)
    planes = tuple(Plane(layer, "kv", heads=4, dim=16, format="bfloat16") for layer in range(3))
    assert engine.layout == PageLayout((PageGroup(planes),))
    assert engine.eos_token_ids == {2}
    assert len(engine.fingerprint) == 32
    with pytest.raises(RuntimeError, match="before load"):
        engine.execute(make_step(Rows([3], 0, [0])))


def test_loading_reports_every_byte_once(llama: Reference) -> None:
    seen: list[tuple[int, int]] = []
    open_engine("torch", llama.files).load(lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {done[-1]}
    assert done[-1] == 4 * sum(p.numel() for p in llama.model.parameters())


def test_a_closed_engine_runs_nothing(llama: Reference) -> None:
    engine = start_engine(llama.files)
    engine.close()
    with pytest.raises(RuntimeError, match="before load"):
        engine.execute(make_step(Rows([3], 0, [0])))


@pytest.mark.parametrize("dtype", get_args(ComputeDtype))
@pytest.mark.parametrize("kv_dtype", get_args(KvDtype))
def test_number_formats(dtype: ComputeDtype, kv_dtype: KvDtype, llama: Reference) -> None:
    """Rounding to 8 bits of mantissa moves logits by about a hundredth, to 4 by more; pages hold what was computed."""
    engine = open_engine("torch", llama.files, dtype=dtype, kv_dtype=kv_dtype, threads=1)
    engine.load(lambda done, total: None)
    engine.bind(np.full((4, engine.layout.page_bytes), 0xFF, dtype=np.uint8))
    tokens = prompt(80)
    engine.execute(make_step(Rows(tokens[:70], 0, [2, 1])))
    found = engine.execute(make_step(Rows(tokens[70:], 70, [2, 1])))
    expected = llama.logits(tokens)[70:]
    exact = dtype == kv_dtype == "float32"
    bound = 1e-4 if exact else 0.3 if kv_dtype.startswith("fp8") else 0.1
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
    assert exact or not np.array_equal(found, expected)


@pytest.mark.parametrize("device", ["cuda", "nonsense"])
def test_absent_devices_are_refused(device: str, llama: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match=device):
        open_engine("torch", llama.files, device=device)


def test_a_model_is_needed() -> None:
    with pytest.raises(InvalidRequest, match="engine torch needs a model"):
        open_engine("torch", None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_reordered_weights_multiply_alike(dtype: torch.dtype, rows: int) -> None:
    weight, bias, x = (torch.randn(shape, dtype=dtype) for shape in ((96, 64), (96,), (rows, 64)))
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    found = Linear(weight, bias)(x)
    assert found.dtype == dtype
    assert (found - expected).abs().max() <= expected.abs().max() * (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.slow
def test_smollm2_answers() -> None:
    """Through its own template and tokenizer, greedily."""
    files = locate(str(ensure_default(lambda done, total: None)))
    tokenizer = Tokenizer.load(files)
    engine = open_engine("torch", files, dtype="float32", kv_dtype="float32", threads=1)
    engine.load(lambda done, total: None)
    engine.bind(np.zeros((4, engine.layout.page_bytes), dtype=np.uint8))
    text = ChatTemplate.load(files).render([{"role": "user", "content": "What is the capital of France?"}])
    tokens = tokenizer.encode(text)
    answer: list[int] = []
    rows = Rows(tokens, 0, [2, 0, 1])
    while not answer or answer[-1] not in engine.eos_token_ids:
        answer.append(int(engine.execute(make_step(rows))[-1].argmax()))
        rows = Rows(answer[-1:], len(tokens) + len(answer) - 1, [2, 0, 1])
    assert tokenizer.decode(answer) == "The capital of France is Paris."


def test_the_registry_imports_no_torch(tmp_path: Path) -> None:
    """Who asks for another engine never pays for it; a fresh interpreter shows it."""
    import subprocess

    code = (
        "import sys; from paceline.engine.registry import open_engine; open_engine('fake', None);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_unknown_models_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InvalidRequest, match="model_type 'gpt2'"):
        open_engine("torch", ModelFiles("m", "hf", tmp_path))


def test_scales_of_the_cache_come_from_the_checkpoint(llama: Reference, tmp_path: Path) -> None:
    """Where every layer has them; else from a sample, whose keys and values they let use half of e4m3's range."""
    calibrated = fp8_scales(llama.files)
    assert len(calibrated) == 6
    assert all(0 < scale < 0.1 for scale in calibrated)

    directory = shutil.copytree(llama.directory, tmp_path / "model")
    weights = directory / "model.safetensors"
    tensors = load_file(weights)
    for layer in range(3):
        for i, kind in enumerate("kv"):
            tensors[f"model.layers.{layer}.self_attn.{kind}_scale"] = np.array(
                0.5 + layer + i / 4, np.float32
            )
    save_file(tensors, weights, {"format": "pt"})
    assert fp8_scales(locate(str(directory))) == (0.5, 0.75, 1.5, 1.75, 2.5, 2.75)

    del tensors["model.layers.1.self_attn.v_scale"]
    save_file(tensors, weights, {"format": "pt"})
    assert fp8_scales(locate(str(directory))) == calibrated


def fp8_scales(files: ModelFiles) -> tuple[float, ...]:
    engine = open_engine("torch", files, dtype="float32", kv_dtype="fp8_e4m3")
    engine.load(lambda done, total: None)
    return engine.profile.scales


def test_fp8_needs_a_gpu_that_has_it(
    llama: Reference, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(InvalidRequest, match=r"cuda:0: FP8 needs a GPU of compute capability 8\.9"):
        open_engine("torch", llama.files, kv_dtype="fp8_e4m3", device="cuda")
    quantize(llama.directory, tmp_path / "fp8", Options("fp8"), lambda done, total: None)
    engine = open_engine("torch", locate(str(tmp_path / "fp8")), device="cuda")
    with pytest.raises(InvalidRequest, match="FP8 needs a GPU"):
        engine.load(lambda done, total: None)

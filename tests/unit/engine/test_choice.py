"""Which engine runs what, and what is said where none does."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.choice import Choice, choose
from paceline.engine.cpu import build
from paceline.model.files import ModelFiles
from tests.dense import save_dense


@pytest.fixture
def dense(tmp_path: Path) -> ModelFiles:
    return save_dense(tmp_path / "dense")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And nothing that one has left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "find_compiler", lambda: None)


def test_auto_is_cpu_where_that_runs_the_model(dense: ModelFiles, without_torch: None) -> None:
    assert choose("auto", dense) == choose("auto", dense, weights="int4") == Choice("cpu")


def test_auto_is_torch_for_what_belongs_to_it(dense: ModelFiles) -> None:
    on_gpu = choose("auto", dense, device="cuda:1")
    assert on_gpu == Choice("torch", "device cuda:1 (PACELINE_DEVICE) is for torch")
    exact = choose("auto", dense, dtype="float32")
    assert exact.engine == "torch"
    assert "dtype float32 (PACELINE_DTYPE)" in str(exact.reason)


def test_auto_is_torch_for_models_that_cpu_does_not_run(tmp_path: Path) -> None:
    experts = {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    }
    files = save_dense(tmp_path / "experts", **experts)
    reason = f"{files.path}: the cpu engine does not run mixtures of experts"
    assert choose("auto", files) == Choice("torch", reason)


@pytest.mark.usefixtures("without_compiler")
def test_auto_is_torch_without_a_compiler_until_the_engine_is_there(
    dense: ModelFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = choose("auto", dense)
    assert found.engine == "torch"
    assert "no C++ compiler" in str(found.reason)
    monkeypatch.setattr(build, "library", lambda level: tmp_path / "built.so")
    assert choose("auto", dense) == Choice("cpu")


@pytest.mark.usefixtures("without_compiler", "without_torch")
def test_with_neither_it_says_what_to_install(dense: ModelFiles) -> None:
    with pytest.raises(
        InvalidRequest, match=r"torch is not installed \(`make up TORCH=1`.*no C\+\+ compiler"
    ):
        choose("auto", dense)
    with pytest.raises(InvalidRequest, match=r"engine torch is not installed \(`make up TORCH=1`"):
        choose("torch", dense)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("cpu", {"device": "cuda"}, r"engine cpu: device cuda \(PACELINE_DEVICE\) is for torch"),
        ("cpu", {"dtype": "bfloat16"}, r"engine cpu: dtype bfloat16 \(PACELINE_DTYPE\)"),
        ("torch", {"weights": "int8"}, r"weights int8 \(PACELINE_WEIGHTS\) are for the cpu engine"),
        ("auto", {"weights": "int8", "device": "cuda"}, r"PACELINE_WEIGHTS.*device cuda"),
    ],
)
def test_settings_of_the_other_engine_are_refused(
    name: Any, settings: dict[str, Any], reason: str, dense: ModelFiles
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        choose(name, dense, **settings)

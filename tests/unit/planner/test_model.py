"""Where models to plan for come from."""

import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.planner import model
from tests.unit.planner import shapes

ROOT = Path(__file__).parents[3]


def test_shipped_shapes_say_where_they_come_from() -> None:
    names = model.shipped()
    assert names == ["deepseek-v3", "glm-5.2", "kimi-k2.5", "kimi-k2.6", "llama-3.3-70b", "llama-4-scout"]
    assert all(model.find(name).source.endswith(".") for name in names)


def test_shapes_go_into_the_wheel() -> None:
    """It takes whole packages, without what git ignores."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert model.SHAPES.is_relative_to(ROOT / "src/paceline")
    assert packages["packages"][0] == "src/paceline"
    assert "exclude" not in packages
    files = [str(model.SHAPES / name / "config.json") for name in model.shipped()]
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, check=False)
    assert ignored.stdout == b""


def test_a_directory_needs_no_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shapes.TINY))
    found = model.find(str(tmp_path))
    assert (found.name, found.stored_bytes, found.mtp_layers) == (tmp_path.name, None, 0)
    assert len(found.config.layers) == 3


def test_a_config_json_stands_for_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shapes.TINY))
    assert model.find(str(tmp_path / "config.json")) == model.find(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert model.find("config.json").name == tmp_path.name


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("moonshotai/Kimi-K2.6", "kimi-k2.6"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout"),
        ("unsloth/GLM5.2", "glm-5.2"),
        ("GLM-5.2", "glm-5.2"),
    ],
)
def test_an_unknown_name_brings_to_mind_a_shipped_one(name: str, meant: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"no model '{name}' \(did you mean {meant}\?\): expected"):
        model.find(name)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "mistralai/Mistral-7B-v0.3", "owner/", "llama"])
def test_other_names_bring_none_to_mind(name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"no model '{name}': expected"):
        model.find(name)


def test_stored_bytes_are_those_of_the_index_or_of_the_files(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros((3, 5), np.float32), "b": np.zeros(7, np.uint8)}, tmp_path / "one.safetensors")
    save_file({"c": np.zeros(100, np.float16)}, tmp_path / "two.safetensors")
    assert shapes.read(tmp_path, shapes.TINY).stored_bytes == 60 + 7 + 200
    index = {"metadata": {"total_size": 12345}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert shapes.read(tmp_path, shapes.TINY).stored_bytes == 12345


def test_a_hub_id_counts_when_its_configuration_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("0" * 40)
    refs = tmp_path / "models--owner--name" / "refs"
    snapshot.mkdir(parents=True)
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text(json.dumps(shapes.TINY))
    assert model.find("owner/name").name == "owner/name"
    with pytest.raises(InvalidRequest, match="no model 'owner/other'"):
        model.find("owner/other")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is none of"),
        ({"num_nextn_predict_layers": 99}, "num_nextn_predict_layers 99 is above 16"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_attention_heads": 10**400}, "num_attention_heads is 1000"),
    ],
)
def test_what_cannot_be_planned(tmp_path: Path, values: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        shapes.read(tmp_path, shapes.TINY | values)


@pytest.mark.parametrize("size", [-1, 1e300, "5"])
def test_an_index_without_a_sensible_size(size: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": size}}))
    with pytest.raises(InvalidRequest, match=r"index\.json: total_size"):
        shapes.read(tmp_path, shapes.TINY)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").mkdir()
    with pytest.raises(InvalidRequest, match=r"one\.safetensors cannot be read"):
        shapes.read(tmp_path, shapes.TINY)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InvalidRequest, match=r"config\.json cannot be read"):
        model.find(str(tmp_path))


def test_a_directory_does_not_choose_what_is_said_about_it(tmp_path: Path) -> None:
    assert shapes.read(tmp_path, shapes.TINY | {"_source": "official"}).source == str(
        tmp_path / "config.json"
    )

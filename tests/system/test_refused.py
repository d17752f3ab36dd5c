"""Models that cannot be served: `paceline up` says why in one line, before anything is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

from paceline.cli.__main__ import app
from paceline.contracts.errors import InvalidRequest
from tests.system.tiny import save_tokenizer
from tests.unit.model.test_refusals import DECODER, Checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    (tmp_path / "model").mkdir()
    checkpoint = Checkpoint(tmp_path / "model")
    save_tokenizer(checkpoint.directory, map(chr, range(33, 71)))
    return checkpoint


def refused(model: Checkpoint, *flags: str) -> str:
    """What stands on stderr behind the path of the model."""
    arguments = ["up", "--model", str(model.directory), "--port", "0", *flags]
    result = typer.testing.CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    return line.removeprefix("paceline up: ").removeprefix(str(model.directory))


def test_latents_that_a_kv_dtype_does_not_fit(model: Checkpoint) -> None:
    model.save()
    reason = "fp8_per_token_head has a scale for 128 values of a latent; 32 is no multiple"
    assert refused(model, "--decode-kv-dtype", "fp8_per_token_head") == reason
    assert refused(model, "--kv-dtype", "fp8_per_token_head") == reason


def test_a_device_that_there_is_none_of(model: Checkpoint) -> None:
    model.save()
    assert refused(model, "--device", "gpu") == "device 'gpu' is none of cpu, cuda, cuda:N"


def test_weights_are_checked_for_the_device_that_was_asked_for(
    model: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stored: object, path: object, device: str) -> None:
        raise InvalidRequest(f"nothing multiplies these on {device}")

    model.save()
    monkeypatch.setattr("paceline.cli.preflight.check_weights", refuse)
    assert refused(model, "--device", "cuda:1") == "nothing multiplies these on cuda:1"


def test_settings_of_an_engine_that_does_not_run_the_model(model: Checkpoint) -> None:
    model.save()
    reason = f"{model.directory}: the cpu engine does not run latent attention"
    other = "weights int8 (PACELINE_WEIGHTS) are for the cpu engine, and this one is torch: "
    assert refused(model, "--weights", "int8") == other + reason
    assert refused(model, "--decode-weights", "int8") == other + reason
    assert refused(model, "--engine", "cpu") == ": the cpu engine does not run latent attention"
    assert refused(model, "--engine", "cpu", "--dtype", "float32").startswith(
        "engine cpu: dtype float32 (PACELINE_DTYPE)"
    )


@pytest.mark.parametrize("engine", ["torch", "fake"])
def test_a_model_without_a_tokenizer(engine: str, model: Checkpoint) -> None:
    (model.directory / "tokenizer.json").unlink()
    model.save()
    assert refused(model, "--engine", engine) == "/tokenizer.json is missing"


def test_a_model_that_was_not_made_to_chat(model: Checkpoint) -> None:
    model.write("tokenizer_config.json", {})
    model.save()
    assert refused(model) == "/tokenizer_config.json: there is no chat template"


@pytest.mark.slow
def test_the_command_leaves_no_process_and_no_file(model: Checkpoint, tmp_path: Path) -> None:
    name = DECODER + "1.mlp.experts.3.up_proj.weight_scale"
    del model.tensors[name]
    model.save()
    (tmp_path / "run").mkdir(mode=0o700)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    command = [sys.executable, "-m", "paceline.cli", "up", "--model", str(model.directory), "--port", "0"]
    # A session of its own tells its processes from all others.
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (output, errors) == ("", f"paceline up: {model.directory}: tensor {name} is missing\n")
    assert process.pid not in _sessions()
    assert not (tmp_path / "state").exists()
    assert not list((tmp_path / "run").iterdir())


def _sessions() -> set[int]:
    """Those of all processes."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.add(int(stat.read_text().rpartition(")")[2].split()[3]))
        except OSError:
            continue
    return found

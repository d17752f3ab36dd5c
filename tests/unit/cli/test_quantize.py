"""`paceline quantize` as it is typed."""

import json
import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.__main__ import app
from paceline.cli.progress import Tenths
from tests.unit.quantize.checkpoints import dense_tensors, load, save


def test_a_model_is_quantized_and_reported(tmp_path: Path) -> None:
    source, out = save(tmp_path / "source", dense_tensors(2)), tmp_path / "out"
    arguments = ["quantize", str(source), str(out), "--to", "int4", "--group", "128", "--keep", "down_proj"]
    done = CliRunner().invoke(app, [*arguments, "--report", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    assert "model.layers.0.self_attn.q_proj.weight_packed" in load(out)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["options"]["group"] == 128
    assert list(report["layers"]) == ["layer 0", "layer 1", "the rest"]
    # 4 bits, a bfloat16 for 128 of them, and the shape.
    total = report["total"]
    assert total["bits_per_weight"] == 4 + 16 / 128 + 8 * 16 / (384 * 256)
    assert 0.09 < total["relative_rms_error"] < 0.11
    assert f"{total['relative_rms_error']:.4f}" in done.output
    assert re.search(r"layer\W+relative RMS error\W+largest absolute error\W+bits per weight", done.output)
    assert "kept, asked for: model.layers.0.mlp.down_proj and 1 more" in done.output


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    source = save(tmp_path / "source", dense_tensors(1))
    (tmp_path / "notes.txt").write_text("mine")
    done = CliRunner().invoke(app, ["quantize", str(source), str(tmp_path), "--to", "fp8"])
    assert done.exit_code == 1
    assert done.output == f"paceline quantize: {tmp_path} is not empty, and was not begun by this command\n"
    done = CliRunner().invoke(app, ["quantize", str(source), str(tmp_path / "out"), "--to", "int3"])
    assert done.exit_code == 2
    for size in ("nan", "inf", "1e400"):
        command = ["quantize", str(source), str(tmp_path / "out"), "--to", "fp8", "--shard-gb", size]
        done = CliRunner().invoke(app, command)
        assert (done.exit_code, done.output) == (
            1,
            f"paceline quantize: --shard-gb {float(size)} is no size\n",
        )


def test_other_options_are_told_those_that_continue(tmp_path: Path) -> None:
    command = ["quantize", str(save(tmp_path / "source", dense_tensors(2))), str(tmp_path / "out")]
    # 1.001 GB is 1,000,999,999.9999999 bytes in floating point.
    begun = shlex.split("--to int4 --group 64 --keep 're:.*0.*[qk]_proj' --keep down_proj --shard-gb 1.001")
    assert CliRunner().invoke(app, [*command, *begun]).exit_code == 0
    done = CliRunner().invoke(app, [*command, "--to", "fp8"])
    assert done.exit_code == 1
    told = re.search(
        "was begun with other options: give (.*), remove it or choose another directory", done.output
    )
    assert told is not None
    assert CliRunner().invoke(app, [*command, *shlex.split(told[1])]).exit_code == 0


@pytest.mark.parametrize("options", ["int4", {"target": "int3"}, {"target": "int4", "group": 7}])
def test_options_that_nobody_can_give_are_not_told(tmp_path: Path, options: object) -> None:
    command = ["quantize", str(save(tmp_path / "source", dense_tensors(1))), str(tmp_path / "out")]
    assert CliRunner().invoke(app, [*command, "--to", "fp8"]).exit_code == 0
    manifest = tmp_path / "out" / ".quantize" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"options": options}))
    done = CliRunner().invoke(app, [*command, "--to", "fp8"])
    assert (done.exit_code, done.output) == (
        1,
        f"paceline quantize: {tmp_path / 'out'} was begun with other options: give those, remove it or choose "
        "another directory\n",
    )


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = save(tmp_path / "source", dense_tensors(2)), tmp_path / "out"

    def interrupt(self: Tenths, done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    # A shell starts jobs in the background with the signal ignored, and tests may be one.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Tenths, "__call__", interrupt)
            done = CliRunner().invoke(app, ["quantize", str(source), str(out), "--to", "fp8"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.exit_code == 130
    assert done.output == "paceline quantize: interrupted; the same command continues where it stopped\n"
    assert not list(out.rglob("*.part"))
    assert CliRunner().invoke(app, ["quantize", str(source), str(out), "--to", "fp8"]).exit_code == 0
    assert "model.layers.0.self_attn.q_proj.weight_scale_inv" in load(out)

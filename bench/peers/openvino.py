"""OpenVINO GenAI's continuous batching with INT4 weights, made by optimum-intel as its documentation does."""

import shutil
from pathlib import Path

from bench.peers import checkpoint, environment
from bench.peers.cases import Cases
from bench.peers.script import Peer
from bench.peers.script import measure as measure_script
from bench.rows import Row

VERSION = "2026.4.1.0"
_REQUIREMENTS = [f"openvino-genai=={VERSION}", "optimum-intel==2.2.0", "nncf==3.4.0"]
# torchvision is built against CUDA; the other sends statistics.
_UNWANTED = ["torchvision", "openvino-telemetry"]
_QUANTIZATION = ["--weight-format", "int4", "--group-size", "32", "--ratio", "1.0"]


def measure(model: Path, cases: Cases) -> list[Row]:
    """Raises `PeerUnavailable` where OpenVINO cannot be installed or does not run."""
    name = f"openvino-{VERSION}"
    python = environment.python_environment(name, _REQUIREMENTS, _UNWANTED)
    exported = _exported(model, python, name)
    environment.say(f"OpenVINO GenAI {VERSION}: measuring")
    peer = Peer(
        what="OpenVINO GenAI INT4",
        script="run_openvino.py",
        python=python,
        model=exported,
        weights="int4 g32, head int8",
        kv="u8",
        env={},
    )
    return measure_script(peer, cases, cold_starts=cases.repeats)


def _exported(model: Path, python: Path, name: str) -> Path:
    source = checkpoint.hugging_face(model)
    home = environment.directory(f"{name}-{source.parent.name}")
    output = home / "int4"
    with environment.building(home) as missing:
        if missing:
            shutil.rmtree(output, ignore_errors=True)
            environment.run(
                "OpenVINO: quantizing to INT4 in groups of 32",
                [
                    *(str(python.with_name("optimum-cli")), "export", "openvino", "--model", str(source)),
                    *("--task", "text-generation-with-past", *_QUANTIZATION, str(output)),
                ],
                home / "export.log",
                env={"HF_HUB_OFFLINE": "1"},
            )
    return output

"""Every kernel compiles for sm_90, where no GPU is, and fits it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import paceline.engine.torch.kernels as kernels
from paceline.engine.torch.kernels.aot import SHARED_LIMIT, compile_sm90, specialisations

OPERATIONS = sorted(path.parent.name for path in Path(kernels.__path__[0]).glob("*/triton.py"))


@pytest.mark.timeout(300)
def test_every_kernel_compiles_for_sm90_within_its_registers_and_shared_memory() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "paceline.engine.torch.kernels.aot", *OPERATIONS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert {report["operation"] for report in reports} == set(OPERATIONS) > {"paged_attention", "mla_decode"}
    for report in reports:
        assert report["registers"] <= 255, report
        assert report["spills_bytes"] <= 64, report
        assert report["shared_bytes"] <= SHARED_LIMIT, report


def test_a_specialisation_names_each_argument_once() -> None:
    (good,) = specialisations("page_tags")
    with pytest.raises(ValueError, match="BLOCK"):
        compile_sm90(replace(good, constants={}))
    with pytest.raises(ValueError, match="twice"):
        compile_sm90(replace(good, constants={**good.constants, "n": 3}))

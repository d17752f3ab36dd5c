"""Every kernel compiles for sm_90, where no GPU is, and fits it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import paceline.engine.torch.kernels as kernels
from paceline.engine.torch.kernels.aot import SHARED_LIMIT, compile_sm90, specialisations
from tests.unit.kernels.process import run_compiling

OPERATIONS = sorted(path.parent.name for path in Path(kernels.__path__[0]).glob("*/triton.py"))
PRODUCTS = {"_attend", "_linear", "_gate_up", "_down"}


@pytest.mark.timeout(300)
def test_every_kernel_compiles_for_sm90_within_its_registers_and_shared_memory() -> None:
    printed = run_compiling("paceline.engine.torch.kernels.aot", *OPERATIONS)
    reports = [json.loads(line) for line in printed.splitlines()]
    assert {report["operation"] for report in reports} == set(OPERATIONS) > {"paged_attention", "mla_decode"}
    for report in reports:
        assert report["registers"] <= 255, report
        assert report["spills_bytes"] <= 64, report
        assert report["shared_bytes"] <= SHARED_LIMIT, report
        assert (report["tensor_core_ops"] > 0) == (report["kernel"] in PRODUCTS), report


def test_a_specialisation_names_each_argument_once() -> None:
    (good,) = specialisations("page_tags")
    with pytest.raises(ValueError, match="BLOCK"):
        compile_sm90(replace(good, constants={}))
    with pytest.raises(ValueError, match="twice"):
        compile_sm90(replace(good, constants={**good.constants, "n": 3}))

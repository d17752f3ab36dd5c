"""What only a GPU can show: that kernels compute there what plain PyTorch does on a CPU."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.contracts.messages import Sampling
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from tests.unit.engine_torch.models import Reference, save_model
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import prompt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

FAMILIES = ["llama", "qwen3", "gpt_oss", "llama4", "deepseek_v3", "glm_moe_dsa", "glm4_moe", "qwen3_moe"]
KERNELS = [
    "paged_attention",
    "mla_decode",
    "kv_write",
    "convert_pages",
    "page_tags",
    "w4a16",
    "fp8_linear",
    "fp4_linear",
    "experts",
    "rms_norm",
    "rope",
    "sampling",
]
GREEDY = Sampling(max_tokens=1, temperature=0.0)


@pytest.fixture
def compiled() -> None:
    """In a process whose other tests run kernels in the interpreter, these would run there too: Triton decides once."""
    if "TRITON_INTERPRET" in os.environ:
        pytest.skip("on a GPU: make test ARGS=tests/unit/engine_torch/test_gpu.py")


@pytest.fixture(scope="module", params=FAMILIES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model(request.param, tmp_path_factory.mktemp(request.param))


def start(
    reference: Reference, kv_dtype: KvDtype = "float32", device: str = "cuda"
) -> tuple[Engine, np.ndarray]:
    engine = open_engine("torch", reference.files, dtype="float32", kv_dtype=kv_dtype, device=device)
    engine.load(lambda done, total: None)
    pages = np.zeros((8 * len(engine.layout.groups), engine.layout.page_bytes), dtype=np.uint8)
    engine.bind(pages)
    return engine, pages


@pytest.mark.usefixtures("compiled")
def test_prompts_chunks_decoding_and_drafts(reference: Reference) -> None:
    engine, pages = start(reference)
    groups = engine.layout.groups
    assert not engine.in_place
    assert engine.page_memory is not None
    prompts = [prompt(n, seed=n) for n in (30, 40, 100)]
    table, starts = [[1], [2], [3, 4]], [29, 38, 70]
    parts = list(zip(prompts, starts, table, strict=True))
    engine.execute(make_step(*(Rows(t[:s], 0, p) for t, s, p in parts), groups=groups))
    step = make_step(
        Rows(prompts[0][29:], 29, [1]),
        Rows([*prompts[1][38:39], 7, prompts[1][39]], 38, [2], [-1, 0, 0], [38, 39, 39]),
        Rows(prompts[2][70:], 70, [3, 4]),
        groups=groups,
    )
    found = engine.execute(step)
    second = prompts[1][:39]
    expected = [reference.logits(prompts[0])[29:], reference.logits(second)[38:]]
    expected += [reference.logits([*second, t])[39:] for t in (7, prompts[1][39])]
    expected.append(reference.logits(prompts[2])[70:])
    logits = np.concatenate(expected)
    assert np.abs(found - logits).max() <= 1e-3 * np.abs(logits).max()
    assert engine.sample(step, [GREEDY] * len(logits)) == found.argmax(1).tolist()
    assert not pages.any()
    engine.export_pages([3 * len(groups)])
    assert pages[3 * len(groups)].any()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3", "fp8_per_token_head"])
def test_pages_of_a_cpu_go_on_on_a_gpu(kv_dtype: KvDtype, tmp_path: Path) -> None:
    reference = save_model("llama", tmp_path)
    host, written = start(reference, kv_dtype, "cpu")
    engine, pages = start(reference, kv_dtype)
    tokens = prompt(100)
    host.execute(make_step(Rows(tokens[:90], 0, [2, 1])))
    pages[:] = written
    engine.import_pages([1, 2])
    last = make_step(Rows(tokens[90:], 90, [2, 1]))
    expected = host.execute(last)
    assert np.abs(engine.execute(last) - expected).max() <= 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels(kernel: str) -> None:
    """In a process of its own: in this one Triton may have been told to interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "bench.gpu", "--quick", "--only", kernel]
    run = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr

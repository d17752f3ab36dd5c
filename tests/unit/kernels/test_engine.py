"""The engine as a GPU runs it, with its kernels in Triton's interpreter.

That takes seconds for what a GPU does at once: long prompts are computed without it.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import transformers

from paceline.contracts.messages import Sampling
from paceline.engine import calibration, sampling
from paceline.engine.interface import Engine
from paceline.engine.layout import KvDtype
from paceline.engine.registry import open_engine
from paceline.engine.step import Step
from paceline.engine.torch import kernels
from paceline.engine.torch.attention import StepAttention
from paceline.engine.torch.kernel_attention import KernelAttention
from tests.unit.engine_torch.models import MODELS, SPARSE, Reference, save_model
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import assert_same, prompt

UInt8 = npt.NDArray[np.uint8]

PAGES = 8
DRAFTS = [-1, 0, 0, 1]
# Rows of 512 latent values in FP8 are 560 bytes long, which the kernel takes.
LATENT = transformers.GlmMoeDsaConfig(
    **SPARSE | {"kv_lora_rank": 512, "num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2}
)


def start(reference: Reference, kv_dtype: KvDtype, pages: UInt8 | None = None) -> tuple[Engine, UInt8]:
    """An engine, by default over pages of NaN, and its pages."""
    engine = open_engine("torch", reference.files, dtype="float32", kv_dtype=kv_dtype, threads=1)
    engine.load(lambda done, total: None)
    if pages is None:
        shape = (PAGES * len(engine.layout.groups), engine.layout.page_bytes)
        pages = np.full(shape, 0xFF, dtype=np.uint8)
    engine.bind(pages)
    return engine, pages


def by_kernels(
    monkeypatch: pytest.MonkeyPatch, reference: Reference, kv_dtype: KvDtype, pages: UInt8 | None = None
) -> Engine:
    """One that attends by kernels alone."""
    monkeypatch.setattr(kernels, "triton_runs", lambda device: True)
    engine, _ = start(reference, kv_dtype, pages)
    monkeypatch.setattr(StepAttention, "grouped", None)
    monkeypatch.setattr(StepAttention, "latent", None)
    return engine


def prepared(engine: Engine) -> None:
    """Run prompts: pages 1 and 2 have 118 positions, page 3 has 2, pages 4 and 5 have 69."""
    step = make_step(
        Rows(prompt(120)[:118], 0, [1, 2]),
        Rows(prompt(3, seed=1)[:2], 0, [3]),
        Rows(prompt(70, seed=2)[:69], 0, [4, 5]),
        groups=engine.layout.groups,
    )
    engine.execute(step)


def mixed(engine: Engine) -> Step:
    """A chunk, a row, a tree of drafts across pages, and a prompt."""
    drafts = [prompt(70, seed=2)[69], 7, 8, 9]
    return make_step(
        Rows(prompt(120)[118:], 118, [1, 2]),
        Rows(prompt(3, seed=1)[2:], 2, [3]),
        Rows(drafts, 69, [4, 5], parents=DRAFTS, positions=[69, 70, 70, 71]),
        Rows(prompt(18, seed=3), 0, [6]),
        groups=engine.layout.groups,
    )


@pytest.mark.parametrize("name", ["gpt_oss", "llama4", "deepseek_v3", "glm_moe_dsa"])
def test_a_mixed_step_has_the_logits_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = save_model(name, tmp_path)
    plain, pages = start(reference, "float32")
    prepared(plain)
    engine = by_kernels(monkeypatch, reference, "float32", pages)
    found = engine.execute(mixed(engine))
    tree = prompt(70, seed=2)
    paths = [tree, [*tree, 7], [*tree, 8], [*tree, 7, 9]]
    expected = [
        reference.logits(prompt(120))[118:],
        reference.logits(prompt(3, seed=1))[2:],
        *(reference.logits(path)[-1:] for path in paths),
        reference.logits(prompt(18, seed=3)),
    ]
    assert_same(found, np.concatenate(expected))


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8_e4m3", "fp8_per_token_head"])
@pytest.mark.parametrize("name", ["llama", "wide latent"])
def test_pages_in_every_format(
    name: str, kv_dtype: KvDtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written, and what is read, are those of plain PyTorch."""
    monkeypatch.setitem(MODELS, "wide latent", lambda: LATENT)
    monkeypatch.setattr(calibration, "_MAX_TOKENS", 8)  # which the interpreter runs too
    reference = save_model(name, tmp_path)
    plain, pages = start(reference, kv_dtype)
    prepared(plain)
    same = pages.copy()
    expected = plain.execute(mixed(plain))
    engine = by_kernels(monkeypatch, reference, kv_dtype, same)
    found = engine.execute(mixed(engine))
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
    # Of 25 of 512 positions; some roundings turn, and the last bits of scales.
    assert (pages != same).mean() < 0.005


def test_tokens_are_drawn_where_the_logits_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of rows that need more than their logits are left to the host."""
    reference = save_model("llama", tmp_path)
    engine = by_kernels(monkeypatch, reference, "float32")
    step = make_step(Rows(prompt(5), 0, [1]), groups=engine.layout.groups)
    logits = engine.execute(step)
    wishes = [
        Sampling(max_tokens=1, temperature=0.0),
        None,
        Sampling(max_tokens=1, temperature=1.0, seed=7),
        Sampling(max_tokens=1, temperature=2.0, top_k=20, top_p=0.9, seed=8),
        Sampling(max_tokens=1, temperature=1.0, min_p=0.1, seed=9),
    ]
    outcome = engine.sample(step, wishes)
    for row, (wish, found) in enumerate(zip(wishes, outcome, strict=True)):
        if wish is None:
            assert np.array_equal(found, logits[row])
        else:
            assert found == sampling.sample(logits[row], wish, row, None)
    everything = [wish or wishes[0] for wish in wishes]
    assert all(isinstance(found, int) for found in engine.sample(step, everything))


def test_more_drafts_than_the_kernels_take_are_attended_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = save_model("llama", tmp_path)
    monkeypatch.setattr(kernels, "triton_runs", lambda device: True)
    monkeypatch.setattr(KernelAttention, "grouped", None)
    engine, _ = start(reference, "float32")
    tokens = prompt(65)
    found = engine.execute(make_step(Rows(tokens, 0, [1, 2], range(-1, 64), range(65))))
    assert_same(found, reference.logits(tokens))

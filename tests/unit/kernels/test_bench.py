"""`bench.gpu` at the shapes of toys: kernels in the interpreter, a clock of the host, models on the CPU."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from bench import gpu, gpu_attention, gpu_linear, gpu_models, gpu_small
from bench.generated import GeneratedEngine
from bench.gpu_attention import Batch
from bench.gpu_case import Case, Result, measure
from bench.gpu_clock import Roofs, measure_roofs
from bench.gpu_linear import ExpertShape
from bench.gpu_process import FailedError, Process
from paceline.engine.layout import KV_DTYPES
from paceline.engine.torch import kernels
from paceline.model.config import GroupedAttention, LatentAttention, Rope

CPU = torch.device("cpu")
ROOFS = Roofs(bandwidth=1e12, bf16=1e15, fp8=2e15)
GROUPED = GroupedAttention(heads=4, kv_heads=2, head_dim=16, rope=None)
LATENT = LatentAttention(
    heads=2, q_rank=16, kv_rank=512, nope_dim=16, value_dim=16, rope=Rope(1e4, 16), scale=0.1
)
EXPERTS = ExpertShape("toy", experts=4, chosen=2, hidden=128, inner=128)


class HostClock:
    """Once is enough."""

    def seconds(self, run: Callable[[], object]) -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began


TOYS = [
    gpu_attention.paged(GROUPED, Batch(2, 70), "fp8_e4m3"),
    gpu_attention.paged(GROUPED, Batch(1, 70, 5), "fp8_per_token_head"),
    gpu_attention.latent(LATENT, Batch(2, 70), "fp8_per_token_head", selected=20),
    gpu_attention.latent(LATENT, Batch(1, 70), "bfloat16"),
    gpu_small.norm(2, 48),
    gpu_small.rotation(2, heads=3, dim=16),
    gpu_small.write(GROUPED, 3, "fp8_e4m3"),
    gpu_small.conversion(GROUPED, 2, "fp8_e4m3"),
    gpu_small.drawing(2, 200),
    gpu_small.tags(50),
    gpu_linear.w4a16("toy", 3, 128, 128, group=32),
    gpu_linear.fp8("toy", 3, 128, 256),
    gpu_linear.fp4("toy", 3, 128, 128),
    *(gpu_linear.expert_layer(EXPERTS, 3, form) for form in ("int4", "fp8", "bf16")),
]


@pytest.mark.parametrize("case", TOYS, ids=lambda case: f"{case.kernel} {case.shape}")
def test_cases_pass_their_own_check(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "triton_runs", lambda device: True)
    result = measure(case, HostClock(), ROOFS, CPU)
    assert result.good, result
    assert result.gbps > 0
    assert 0 < result.roof < 1


def test_every_kernel_has_cases_and_names_are_unique() -> None:
    names = [(case.kernel, case.shape) for case in gpu.kernel_cases(quick=False)]
    assert len(set(names)) == len(names) > 100
    quick = [(case.kernel, case.shape) for case in gpu.kernel_cases(quick=True)]
    kinds = {kernel for kernel, _ in names}
    assert {kernel for kernel, _ in quick} == kinds == {case.kernel for case in TOYS}
    assert len(quick) < len(names) / 2


def test_what_a_case_has_to_move_and_compute() -> None:
    """Four heads of 16 values, keys and values of 70 positions of two sequences, one row or five."""
    one = gpu_attention.paged(GROUPED, Batch(2, 70), "bfloat16").prepare(CPU)
    assert one.operations == 2 * 4 * 16 * 2 * (2 * 70)
    assert one.moved == 2 * 70 * 2 * 2 * 16 * 2 + 2 * (2 * 4 * 16 * 2)
    assert Batch(1, 70, 5).seen == 66 + 67 + 68 + 69 + 70
    assert ROOFS.seconds(10**12, 0, "bf16") == 1.0
    assert ROOFS.seconds(0, 4 * 10**15, "fp8") == 2.0
    assert replace(ROOFS, fp8=None).seconds(0, 4 * 10**15, "fp8") == 4.0


def test_a_wrong_kernel_is_found() -> None:
    case = gpu_small.norm(2, 48)
    prepared = case.prepare(CPU)
    wrong = replace(prepared, run=lambda: prepared.run() * 1.1)
    assert wrong.error() > wrong.tolerance >= prepared.error()
    assert replace(prepared, run=lambda: prepared.run() * torch.nan).error() == float("inf")


def test_what_fails_is_reported_and_the_rest_goes_on() -> None:
    report = gpu.Report(Console(quiet=True))
    good = Result("norm", "2 x 3", 0.0, 0.1, 1.0, 1.0, 1.0, 0.5)

    def fail() -> Result:
        raise FailedError("no result within 1 s")

    soon = time.monotonic() + 60
    report.attempt("a", soon, fail, report.add_result)
    report.attempt("b", soon, lambda: good, report.add_result)
    report.attempt("c", soon, lambda: replace(good, error=0.2), report.add_result)
    report.attempt("d", 0.0, lambda: good, report.add_result)
    assert report.failures == [
        "a: no result within 1 s",
        "norm: 2 x 3: differs from plain PyTorch by 2.00e-01 of the largest value",
    ]
    assert [result.error for result in report.results] == [0.0, 0.2]
    assert report.left_out == ["d"]


class FakeProcess:
    """Measures nothing; attention in one form has no GPU to run on, and SmolLM2 cannot be fetched."""

    def call(self, function: Callable[..., object], *args: object, timeout: float) -> object:
        assert 0 < timeout <= 120
        if function is gpu.find_roofs:
            return ROOFS
        if function is gpu.run_model:
            index, kv, _ = args
            if index == 0:
                raise FailedError("no network")
            return [gpu_models.Speed(str(index), str(kv), "prefill", 1.0)]
        index, quick, _ = args
        assert isinstance(index, int)
        case = list(gpu.kernel_cases(quick=bool(quick)))[index]
        return Result(case.kernel, case.shape, 0.0, 0.1, 1.0, 1.0, 1.0, 0.5)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("only", "code", "kernels", "models"),
    [("", 1, 12, 4), ("mla", 0, 1, 0), ("models", 1, 0, 4), ("nothing", 1, 0, 0)],
)
def test_the_script(
    only: str, code: int, kernels: int, models: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "toy")
    monkeypatch.setattr(gpu, "Process", FakeProcess)
    file = tmp_path / "rows.json"
    monkeypatch.setattr("sys.argv", ["gpu", "--quick", "--only", only, "--json", str(file)])
    with pytest.raises(SystemExit) as exit_:
        gpu.main()
    assert exit_.value.code == code
    written = json.loads(file.read_text())
    assert len({row["kernel"] for row in written["kernels"]}) == kernels
    assert len(written["models"]) == models
    assert written["left_out"] == []


def test_without_a_gpu_the_script_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit) as exit_:
        gpu.main()
    assert exit_.value.code == 2
    assert "this machine has none" in capsys.readouterr().err


def test_roofs() -> None:
    found = measure_roofs(HostClock(), CPU, copied=1 << 20, size=64)
    assert found.bandwidth > 0
    assert found.bf16 > 0


def test_a_process_survives_errors_and_is_replaced_when_it_dies_or_hangs() -> None:
    process = Process()
    assert process.call(abs, -3, timeout=60) == 3
    with pytest.raises(FailedError, match="ZeroDivisionError"):
        process.call(divmod, 1, 0, timeout=60)
    assert process.call(os.getpid, timeout=60) != os.getpid()
    with pytest.raises(FailedError, match="died"):
        process.call(os._exit, 3, timeout=60)
    with pytest.raises(FailedError, match="no result within"):
        process.call(time.sleep, 60.0, timeout=0.5)
    process.close()


MLA = {
    **gpu_models.EXPERTS,
    "hidden_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "intermediate_size": 64,
}
DENSE = {
    **gpu_models.DENSE,
    "hidden_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
}


@pytest.mark.parametrize("config", [MLA, DENSE], ids=["mla", "dense"])
@pytest.mark.parametrize("kv", ["bfloat16", "fp8_e4m3"])
def test_models_of_noise_run(config: dict[str, object], kv: str) -> None:
    model = gpu_models.Model(
        "toy",
        lambda kv, directory: GeneratedEngine(
            config, directory, dtype="float32", kv_dtype=kv, device="cpu", threads=1
        ),
    )
    dtype = next(known for known in KV_DTYPES if known == kv)
    load = gpu_models.Load(context=128, chunk=64, batches=(1, 2), steps=3)
    speeds = list(gpu_models.measure(model, dtype, load))
    assert [speed.what for speed in speeds] == ["prefill", "decode, 1 at once", "decode, 2 at once"]
    assert all(speed.tokens_per_s > 0 for speed in speeds)

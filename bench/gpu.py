"""Every kernel and whole models on a GPU, checked against plain PyTorch and measured against what the GPU can do.

    python -m bench.gpu [--quick] [--only NAME] [--json FILE]

First a large copy and large products say what this GPU reaches: the roofs. Then each kernel runs at the shapes that one
of eight GPUs has of Llama 3 70B, Kimi K2.5 and GLM-5.2; "roof" is the share of the time that moving its bytes or
multiplying its numbers would take at least. Last, whole models run prompts and decode. NAME is a kernel, a part of its
name, or "models".

It ends within eight minutes, and names what did not run by then. The exit code is 1 when a check failed, 2 without a
GPU.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console

from bench import gpu_attention, gpu_linear, gpu_models, gpu_small
from bench.gpu_case import Case, Result, measure
from bench.gpu_clock import CudaClock, Roofs, measure_roofs
from bench.gpu_models import Load, Speed
from bench.gpu_process import FailedError, Process
from bench.rows import arguments
from paceline.engine.layout import KvDtype

T = TypeVar("T")

LIMIT_S = 450.0
MODELS_S = 150.0
"""Of that for the models."""
CALL_S = 60.0
GRACE_S = 20.0
"""For what runs at the end of the limit."""
KV: tuple[KvDtype, ...] = ("bfloat16", "fp8_e4m3")


@dataclass
class Report:
    """What was measured, and what went wrong."""

    console: Console
    results: list[Result] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add_result(self, result: Result) -> None:
        self.results.append(result)
        self.say(
            f"{result.kernel:16} {result.shape:44} {result.microseconds:10.1f} us {result.gbps:8.1f} GB/s "
            f"{result.tflops:8.2f} TFLOP/s  {result.roof:4.0%} of roof  error {result.error:.1e}"
        )
        if not result.good:
            self.fail(
                f"{result.kernel}: {result.shape}",
                f"differs from plain PyTorch by {result.error:.2e} of the largest value",
            )

    def add_speeds(self, speeds: list[Speed]) -> None:
        self.speeds += speeds
        for speed in speeds:
            self.say(f"{speed.model:32} KV {speed.kv:12} {speed.what:20} {speed.tokens_per_s:12.1f} tokens/s")

    def attempt(self, name: str, end: float, run: Callable[[], T], keep: Callable[[T], None]) -> None:
        """Keep what `run` gives, unless it fails, or `time.monotonic()` is `end` already."""
        if time.monotonic() > end:
            self.left_out.append(name)
            return
        try:
            keep(run())
        except FailedError as error:
            self.fail(name, str(error))

    def fail(self, name: str, reason: str) -> None:
        self.failures.append(f"{name}: {reason}")
        self.say(f"FAILED {self.failures[-1]}")

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False)

    def write(self, path: Path, roofs: Roofs) -> None:
        content = {
            "roofs": asdict(roofs),
            "kernels": [asdict(result) for result in self.results],
            "models": [asdict(speed) for speed in self.speeds],
            "failures": self.failures,
            "left_out": self.left_out,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")


def kernel_cases(*, quick: bool) -> Iterator[Case]:
    return chain(
        gpu_attention.cases(quick=quick), gpu_linear.cases(quick=quick), gpu_small.cases(quick=quick)
    )


# What runs in the other process.


def find_roofs() -> Roofs:
    device = torch.device("cuda", torch.cuda.current_device())
    return measure_roofs(CudaClock(device), device)


def run_case(index: int, quick: bool, roofs: Roofs) -> Result:
    device = torch.device("cuda", torch.cuda.current_device())
    case = list(kernel_cases(quick=quick))[index]
    return measure(case, CudaClock(device, budget_s=0.03 if quick else 0.1), roofs, device)


def run_model(index: int, kv: KvDtype, load: Load) -> list[Speed]:
    return list(gpu_models.measure(gpu_models.models("cuda")[index], kv, load))


def main() -> None:
    end = time.monotonic() + LIMIT_S
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", default="", metavar="NAME", help="a kernel, a part of its name, or models")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "bench.gpu measures an NVIDIA GPU; this machine has none that PyTorch can use.", file=sys.stderr
        )
        sys.exit(2)
    process, report = Process(), Report(Console(width=180))

    def left(most: float) -> float:
        """Seconds that a call may take."""
        return min(most, end + GRACE_S - time.monotonic())

    try:
        roofs = process.call(find_roofs, timeout=CALL_S)
    except FailedError as error:
        print(f"bench.gpu cannot use this GPU: {error}", file=sys.stderr)
        sys.exit(1)
    report.say(
        f"{torch.cuda.get_device_name()}: copies {roofs.bandwidth / 1e9:.0f} GB/s, multiplies bfloat16 at "
        f"{roofs.bf16 / 1e12:.0f} and e4m3 at {(roofs.fp8 or 0) / 1e12:.0f} TFLOP/s"
    )
    names = [f"{case.kernel}: {case.shape}" for case in kernel_cases(quick=options.quick)]
    for index, name in enumerate(names):
        if options.only in name.split(":")[0]:
            report.attempt(
                name,
                end - MODELS_S,
                lambda i=index: process.call(run_case, i, options.quick, roofs, timeout=left(CALL_S)),  # type: ignore[misc]
                report.add_result,
            )
    load = Load(batches=(1, 16), steps=5) if options.quick else Load()
    for index, model in enumerate(gpu_models.models("cuda") if options.only in "models" else []):
        for kv in KV:
            report.attempt(
                f"{model.name}, KV {kv}",
                end,
                lambda i=index, kv=kv: process.call(run_model, i, kv, load, timeout=left(2 * CALL_S)),  # type: ignore[misc]
                report.add_speeds,
            )
    process.close()
    for name in report.left_out:
        report.say(f"not run, for time: {name}")
    if not report.results and not report.speeds and not report.failures:
        report.fail(options.only, "nothing has this name")
    if options.json is not None:
        report.write(options.json, roofs)
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()

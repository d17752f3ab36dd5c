"""Settings that prefill and decode workers share; `runtime.config.read` fills them from PACELINE_* variables."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from paceline.engine.layout import KvDtype
from paceline.engine.registry import ComputeDtype, EngineName, Weights
from paceline.worker.cores import usable_cores


@dataclass(frozen=True)
class WorkerSettings:
    """`model` is a GGUF file or a Hugging Face directory; the fake engine needs none. `kv_bytes` bounds the page pool,
    which never takes more than a quarter of free memory. `run_dir` is shared by all workers of a host. `engine` auto is
    cpu where that runs the model; `weights` are for it, `dtype` and `device` for torch. `kv_dtype` auto is bfloat16
    unless `dtype` says float32, whose answers shall not depend on rounding."""

    run_dir: Path
    kv_bytes: int
    model: str | None = None
    model_name: str | None = None
    engine: EngineName = "auto"
    weights: Weights = "auto"
    dtype: ComputeDtype = "auto"
    kv_dtype: Literal["auto", KvDtype] = "auto"
    device: str = "cpu"
    threads: int = field(default_factory=usable_cores)
    step_tokens: int = 256
    max_sequences: int = 64
    kv_integrity: Literal["on", "off"] = "on"
    fake_step_s: float = 0.0  # how long a step of the fake engine takes

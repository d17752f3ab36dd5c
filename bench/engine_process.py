"""The CPU engine in a process of its own: seconds to its first token, and what it holds in memory.

    python -m bench.engine_process [--requests N]

prints one JSON object: `first_token` as CLOCK_MONOTONIC says it, `beyond` MB of resident memory beyond weights and KV,
and `growth` MB from one tenth of N short requests to the last.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import paceline.runtime.lean  # noqa: F401  # as a worker does
from bench.loop import Loop
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.cpu.engine import CpuEngine
from paceline.model.files import locate
from paceline.model.pull import ensure_default

PROMPT = 128
_PAGES = 64
_BATCH = 16


def resident() -> float:
    """Bytes of this process in memory, files that it maps included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = locate(str(ensure_default(lambda done, total: None)))
    engine = CpuEngine(model, weights="auto", kv_dtype="bfloat16", threads=options.threads)
    engine.load(lambda done, total: None)
    loop = Loop(engine, _PAGES)
    loop.prefill(PROMPT)
    found = {"first_token": time.monotonic()}
    loop.memory.fill(0)  # so that all of it is resident
    weights = engine.weight_bytes + loop.memory.nbytes
    early = 0.0
    for i in range(options.requests // _BATCH):
        if i * _BATCH <= options.requests // 10:
            early = resident()
        for _ in range(_BATCH):
            loop.add(PAGE_TOKENS // 4, 2)
        loop.drain()
    found["beyond"] = (resident() - weights) / 1e6
    found["growth"] = (resident() - early) / 1e6 if options.requests else 0.0
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

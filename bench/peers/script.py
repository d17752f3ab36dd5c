"""A script in a peer's environment: a request in as JSON, figures out as JSON."""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.peers.cases import Cases
from bench.peers.environment import PeerUnavailable
from bench.peers.steps import Step, decode_rate, prefill_rate
from bench.rows import Row

_LOG_TAIL = 15


@dataclass(frozen=True)
class Peer:
    """`script` is a file beside this one, which `python` of the peer's environment runs with `model` in `env`.

    It prints, as its last line, {"first_token_at": time.time(), "rss_mb": number, "decode": {batch: [run, ...]},
    "prefill": {length: [run, ...]}}, where a run is a list of `steps.Step`.
    """

    what: str
    script: str
    python: Path
    model: Path
    weights: str
    kv: str
    env: Mapping[str, str]


def measure(peer: Peer, cases: Cases, cold_starts: int) -> list[Row]:
    """Rows of `cases`, and of `cold_starts` further starts up to a first token; of the one start with 0.

    Raises `PeerUnavailable` when the script fails.
    """
    config: dict[str, str | int | float | bool] = {"weights": peer.weights, "kv": peer.kv}
    nothing = Cases((), (), cases.prompt, cases.output, cases.repeats, cases.threads)
    starts = [_run(peer, nothing) for _ in range(cold_starts)]
    main = _run(peer, cases)
    starts = starts or [main]
    rows = []
    for batch in cases.decode:
        rates = [decode_rate(run) for run in _runs(main, "decode", batch)]
        rows.append(Row.of(peer.what, {**config, "batch": batch}, "decode_tok_s", rates, "tok/s"))
    for prompt in cases.prefill:
        rates = [prefill_rate(prompt, run) for run in _runs(main, "prefill", prompt)]
        rows.append(Row.of(peer.what, {**config, "prompt": prompt}, "prefill_tok_s", rates, "tok/s"))
    start_config = {**config, "prompt": cases.prompt}
    for metric, unit in (("cold_first_token_s", "s"), ("rss_mb", "MB")):
        rows.append(Row.of(peer.what, start_config, metric, [start[metric] for start in starts], unit))
    return rows


def _run(peer: Peer, cases: Cases) -> dict[str, Any]:
    request = {"model": str(peer.model), "weights": peer.weights, **asdict(cases)}
    script = Path(__file__).with_name(peer.script)
    # The clock that two processes share: the script says when it had its first token.
    began = time.time()
    # -P: this directory has files of the names of the peers' packages.
    done = subprocess.run(
        [str(peer.python), "-P", str(script), json.dumps(request)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **peer.env},
    )
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-_LOG_TAIL:])
        raise PeerUnavailable(f"{peer.what} ended with status {done.returncode}; its errors end in\n{tail}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    figures["cold_first_token_s"] = figures["first_token_at"] - began
    return figures


def _runs(figures: dict[str, Any], kind: str, size: int) -> list[list[Step]]:
    return [[(time_, counts) for time_, counts in run] for run in figures[kind][str(size)]]

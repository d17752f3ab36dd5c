"""What llama.cpp's benchmarks print."""

import json


def batched_bench(output: str) -> tuple[int, float]:
    """Batch size and decoded tokens a second of the one case in `llama-batched-bench --output-format jsonl`.

    The JSON lines stand among lines of the log.
    """
    cases = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if len(cases) != 1:
        raise ValueError(f"expected one case of llama-batched-bench, not {len(cases)}")
    return int(cases[0]["pl"]), float(cases[0]["speed_tg"])


def bench(output: str) -> dict[int, list[float]]:
    """Tokens a second of every repetition, by prompt length, of `llama-bench -o json -n 0`."""
    return {case["n_prompt"]: [float(rate) for rate in case["samples_ts"]] for case in json.loads(output)}

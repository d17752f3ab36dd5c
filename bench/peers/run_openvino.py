"""Runs inside the environment of OpenVINO GenAI; `bench.peers.script` says what goes in and comes out."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai as genai  # type: ignore[import-not-found]

_FIRST_ID = 100
# vLLM's default on a CPU. The own default of 256 reads a batch of prompts in many more steps.
_TOKENS_A_STEP = 2048


def main() -> None:
    request = json.loads(sys.argv[1])
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.max_num_batched_tokens = _TOKENS_A_STEP
    scheduler.max_num_seqs = max([*request["decode"], 1])
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": request["threads"]}
    pipeline = genai.ContinuousBatchingPipeline(request["model"], scheduler, "CPU", properties)
    config = json.loads((Path(request["model"]) / "config.json").read_text())
    runs = Runs(pipeline, random.Random(0), vocab=config["vocab_size"])
    runs.run(1, request["prompt"], 1)
    figures: dict[str, Any] = {"first_token_at": time.time()}
    # The first of each warms up.
    again = range(request["repeats"] + 1)
    figures["decode"] = {
        batch: [runs.run(batch, request["prompt"], request["output"]) for _ in again][1:]
        for batch in request["decode"]
    }
    figures["prefill"] = {n: [runs.run(1, n, 1) for _ in again][1:] for n in request["prefill"]}
    figures["rss_mb"] = _peak_megabytes()
    print(json.dumps(figures))


class Runs:
    """Batches of random prompts through one pipeline."""

    def __init__(self, pipeline: Any, source: random.Random, vocab: int) -> None:
        self._pipeline = pipeline
        self._random = source
        self._vocab = vocab

    def run(self, batch: int, prompt: int, output: int) -> list[tuple[float, list[int]]]:
        """When each step ended, and how many tokens each sequence had then."""
        settings = genai.GenerationConfig()
        settings.max_new_tokens = output
        settings.ignore_eos = True
        settings.do_sample = False
        prompts = [openvino.Tensor(self._ids(prompt)) for _ in range(batch)]
        began = time.perf_counter()
        handles = [self._pipeline.add_request(i, ids, settings) for i, ids in enumerate(prompts)]
        counts = [0] * batch
        steps = []
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for i, handle in enumerate(handles):
                while handle.can_read():
                    counts[i] += sum(len(part.generated_ids) for part in handle.read().values())
            steps.append((time.perf_counter() - began, counts.copy()))
        return steps

    def _ids(self, count: int) -> Any:
        ids = [self._random.randrange(_FIRST_ID, self._vocab) for _ in range(count)]
        return np.array([ids], dtype=np.int64)


def _peak_megabytes() -> float:
    """As the kernel counts since exec; getrusage would go on from what the parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()

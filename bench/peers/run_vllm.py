"""Runs inside the environment of vLLM; `bench.peers.script` says what goes in and comes out."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
from vllm.sampling_params import RequestOutputKind  # type: ignore[import-not-found]

_FIRST_ID = 100


def main() -> None:
    request = json.loads(sys.argv[1])
    longest = max([*request["prefill"], request["prompt"]]) + request["output"]
    llm = LLM(
        request["model"],
        dtype=request["weights"],
        max_model_len=longest,
        max_num_seqs=max([*request["decode"], 1]),
        enable_prefix_caching=False,
    )
    runs = Runs(llm.llm_engine, random.Random(0), vocab=llm.model_config.get_vocab_size())
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
    """Batches of random prompts through one engine."""

    def __init__(self, engine: Any, source: random.Random, vocab: int) -> None:
        self._engine = engine
        self._random = source
        self._vocab = vocab
        self._requests = 0

    def run(self, batch: int, prompt: int, output: int) -> list[tuple[float, list[int]]]:
        """When each step ended, and how many tokens each sequence had then."""
        sampling = SamplingParams(
            max_tokens=output,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompts = [self._ids(prompt) for _ in range(batch)]
        began = time.perf_counter()
        places = {}
        for place, ids in enumerate(prompts):
            self._requests += 1
            name = str(self._requests)
            self._engine.add_request(name, {"prompt_token_ids": ids}, sampling)
            places[name] = place
        counts = [0] * batch
        steps = []
        while self._engine.has_unfinished_requests():
            for result in self._engine.step():
                counts[places[result.request_id]] += len(result.outputs[0].token_ids)
            steps.append((time.perf_counter() - began, counts.copy()))
        return steps

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(_FIRST_ID, self._vocab) for _ in range(count)]


def _peak_megabytes() -> float:
    """As the kernel counts since exec; getrusage would go on from what the parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()

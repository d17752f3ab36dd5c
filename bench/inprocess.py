"""The engine alone in one process, without bus, handoff and HTTP: what the mesh's overhead is measured against.

    python -m bench.inprocess --prompt 128 --output 64 --repeat 5

prints one JSON object {"ttft": [...], "gaps": [...]} in seconds.
"""

import argparse
import asyncio
import json
import os
import sys
import time

import numpy as np

from paceline.contracts.hashing import pages_for, tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import StepResult
from paceline.engine.registry import open_engine
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.thread import EngineThread
from paceline.model.files import locate
from paceline.model.pull import ensure_default


class Timer:
    """The time of each token of the sequence that runs."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.done = asyncio.Event()

    def on_step(self, result: StepResult) -> None:
        now = time.perf_counter()
        for advance in result.advances:
            self.times += [now] * len(advance.tokens)
            if advance.finish_reason is not None:
                self.done.set()


async def measure(model: str, prompt: int, output: int, repeat: int) -> dict[str, list[float]]:
    engine = open_engine("torch", locate(model), threads=os.cpu_count() or 1)
    engine.load(lambda done, total: None)
    pages = pages_for(prompt + output) + 1
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    pool = PagePool(pages, PageTags(np.zeros(pages, dtype=np.uint64)))
    timer = Timer()
    thread = EngineThread(
        engine,
        Scheduler(pool, engine.layout.groups, vocab=engine.vocab, context=engine.context, limits=Limits()),
        lambda result: timer.on_step(result),
    )
    thread.start()
    random = np.random.default_rng(0)
    figures: dict[str, list[float]] = {"ttft": [], "gaps": []}
    for i in range(repeat + 1):
        timer = Timer()
        sequence = Sequence(
            request_id=str(i),
            attempt=1,
            tokens=random.integers(100, engine.vocab, prompt).tolist(),
            prompt_tokens=prompt,
            sampling=Sampling(max_tokens=output, temperature=0.0, ignore_eos=True),
            salt=tenant_salt("bench"),
            limit=prompt + output,
            stop=frozenset(),
            arrival=time.monotonic(),
        )
        began = time.perf_counter()
        await thread.call(lambda scheduler, s=sequence: scheduler.add(s))  # type: ignore[misc]
        await timer.done.wait()
        if i:  # the first one warms up
            figures["ttft"].append(timer.times[0] - began)
            figures["gaps"] += np.diff(timer.times).tolist()
    await thread.stop()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    model = options.model or str(ensure_default(lambda done, total: None))
    print(json.dumps(asyncio.run(measure(model, options.prompt, options.output, options.repeat))))


if __name__ == "__main__":
    main()

"""The engine alone in one process, without bus, handoff and HTTP: what the mesh's overhead is measured against.

    python -m bench.inprocess --prompt 128 --output 64 --streams 8 --repeat 5

prints a JSON list, for each repetition the answers of all streams as `bench.load.Sample`s.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict
from typing import get_args

import numpy as np

from bench.load import Sample
from paceline.contracts.hashing import pages_for, tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine.interface import Engine
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import StepResult
from paceline.engine.registry import EngineName, open_engine
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.thread import EngineThread
from paceline.model.files import locate
from paceline.model.pull import ensure_default


class Streams:
    """The answers of the sequences that run, by request id."""

    def __init__(self, began: float, count: int) -> None:
        self.samples = {str(i): Sample(began) for i in range(count)}
        self.done = asyncio.Event()
        self._left = count

    def on_step(self, result: StepResult) -> None:
        now = time.perf_counter()
        for advance in result.advances:
            sample = self.samples[advance.sequence.request_id]
            sample.times += [now] * len(advance.tokens)
            sample.completion_tokens += len(advance.tokens)
            self._left -= advance.finish_reason is not None
        if self._left == 0:
            self.done.set()


def sequence(name: str, prompt: list[int], output: int) -> Sequence:
    return Sequence(
        request_id=name,
        attempt=1,
        tokens=prompt,
        prompt_tokens=len(prompt),
        sampling=Sampling(max_tokens=output, temperature=0.0, ignore_eos=True),
        salt=tenant_salt("bench"),
        limit=len(prompt) + output,
        stop=frozenset(),
        arrival=time.monotonic(),
    )


async def measure(engine: Engine, prompt: int, output: int, streams: int, repeat: int) -> list[list[Sample]]:
    """`repeat` times the answers of `streams` requests that arrive together. `engine` has been loaded."""
    pages = streams * (pages_for(prompt + output) + 1)
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    pool = PagePool(pages, PageTags(np.zeros(pages, dtype=np.uint64)))
    scheduler = Scheduler(
        pool, engine.layout.groups, vocab=engine.vocab, context=engine.context, limits=Limits()
    )
    running = Streams(0.0, 0)
    thread = EngineThread(engine, scheduler, lambda result: running.on_step(result))
    thread.start()
    random = np.random.default_rng(0)
    runs = []
    for _ in range(repeat + 1):
        prompts = random.integers(100, engine.vocab, (streams, prompt)).tolist()
        running = Streams(time.perf_counter(), streams)

        def add(scheduler: Scheduler, prompts: list[list[int]] = prompts) -> None:
            for i, tokens in enumerate(prompts):
                scheduler.add(sequence(str(i), tokens, output))

        await thread.call(add)
        await running.done.wait()
        runs.append(list(running.samples.values()))
    await thread.stop()
    return runs[1:]  # the first one warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--engine", choices=get_args(EngineName), default="auto")
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    model = options.model or str(ensure_default(lambda done, total: None))
    engine = open_engine(options.engine, locate(model), threads=os.cpu_count() or 1)
    engine.load(lambda done, total: None)
    runs = asyncio.run(measure(engine, options.prompt, options.output, options.streams, options.repeat))
    print(json.dumps([[asdict(sample) for sample in run] for run in runs]))


if __name__ == "__main__":
    main()

"""What Python adds to a step: CPU time of the engine thread between two calls of an engine that takes no time.

    python -m bench.overhead [--quick] [--json FILE]

Rows "greedy" have an engine that returns tokens, "penalties" one whose logits the host samples from. Caches are "cold"
when the engine reads as many bytes as the weights of a small model, which leave nothing of Python there.
"""

import asyncio
import time
from collections.abc import Sequence as Items

import numpy as np

from bench.rows import Row, arguments, report
from paceline.contracts.hashing import pages_for, tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine.interface import Outcome
from paceline.engine.layout import PageGroup, Plane
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.plan import StepResult
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence
from paceline.engine.step import Step
from paceline.engine.thread import EngineThread

VOCAB, CONTEXT = 49152, 8192
PROMPT = 128
GROUPS = (PageGroup((Plane(0, "kv", 6, 64, "bfloat16"),)),)
TOKEN = 1000
COUNTS = (1, 8, 32, 64)
WEIGHTS = np.ones(96 << 20, dtype=np.uint8).view(np.uint64)


class InstantEngine:
    """The part of an `Engine` that a thread uses: every row's token is `TOKEN`. `gaps` are nanoseconds of CPU from the
    end of a step to the begin of the next, where both decode `sequences` sequences."""

    def __init__(self, sequences: int, *, cold: bool) -> None:
        self.gaps: list[int] = []
        self._cold = cold
        self._sequences = sequences
        self._logits = np.zeros(VOCAB, dtype=np.float32)
        self._logits[TOKEN] = 1.0
        self._ended: int | None = None

    def sample(self, step: Step, samplings: Items[Sampling | None]) -> Outcome:
        now = time.thread_time_ns()
        decodes = len(step.tokens) == step.sequences == self._sequences
        if self._ended is not None and decodes:
            self.gaps.append(now - self._ended)
        if self._cold:
            WEIGHTS.sum()
        outcome: Outcome = [self._logits if sampling is None else TOKEN for sampling in samplings]
        self._ended = time.thread_time_ns() if decodes else None
        return outcome


def sequences(count: int, output: int, sampling: Sampling) -> list[Sequence]:
    random = np.random.default_rng(0)
    return [
        Sequence(
            request_id=f"{i:032x}",
            attempt=1,
            tokens=random.integers(0, VOCAB, PROMPT).tolist(),
            prompt_tokens=PROMPT,
            sampling=sampling,
            salt=tenant_salt("bench"),
            limit=PROMPT + output,
            stop=frozenset(),
            arrival=0.0,
        )
        for i in range(count)
    ]


async def gaps(count: int, output: int, sampling: Sampling, *, cold: bool) -> list[float]:
    """Microseconds of Python in each step that decodes `count` sequences."""
    engine = InstantEngine(count, cold=cold)
    pages = count * (pages_for(PROMPT + output) + 1)
    pool = PagePool(pages, PageTags(np.zeros(pages, dtype=np.uint64)))
    scheduler = Scheduler(pool, GROUPS, vocab=VOCAB, context=CONTEXT, limits=Limits())
    left, done = count, asyncio.Event()

    def on_step(result: StepResult) -> None:
        nonlocal left
        left -= sum(advance.finish_reason is not None for advance in result.advances)
        if left == 0:
            done.set()

    thread = EngineThread(engine, scheduler, on_step)  # type: ignore[arg-type]  # all that the thread calls
    for sequence in sequences(count, output, sampling):
        scheduler.add(sequence)
    thread.start()
    await done.wait()
    await thread.stop()
    return [gap / 1e3 for gap in engine.gaps]


def measure(*, quick: bool) -> list[Row]:
    rows = []
    for what, sampling, output in (
        ("greedy", Sampling(max_tokens=1, temperature=0.0), 100 if quick else 400),
        ("penalties", Sampling(max_tokens=1, temperature=0.0, frequency_penalty=0.1), 50),
    ):
        for count in COUNTS[:3] if quick else COUNTS:
            for caches in ("hot", "cold"):
                values = asyncio.run(gaps(count, output, sampling, cold=caches == "cold"))
                config: dict[str, str | int | float | bool] = {"sequences": count, "caches": caches}
                rows.append(Row.of(what, config, "python_per_step", values, "us"))
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    report(measure(quick=options.quick), "overhead", options.json)


if __name__ == "__main__":
    main()

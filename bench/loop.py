"""An engine under the scheduler, in this thread: what the engine thread does, without event loop and queues."""

import time
from dataclasses import dataclass, field

import numpy as np

from paceline.contracts.hashing import tenant_salt
from paceline.contracts.messages import Sampling
from paceline.engine.interface import Engine
from paceline.engine.pages import PagePool, PageTags
from paceline.engine.runner import StepRunner, sample_row
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: its `rows`, the tokens that came out, seconds in all and seconds within the engine."""

    rows: int
    tokens: int
    seconds: float
    engine: float


@dataclass
class Loop:
    """`engine` has been loaded and not bound; `pages` are taken for it here."""

    engine: Engine
    pages: int
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.memory = np.zeros((self.pages, self.engine.layout.page_bytes), dtype=np.uint8)
        self.engine.bind(self.memory)
        self.pool = PagePool(self.pages, PageTags(np.zeros(self.pages, dtype=np.uint64)))
        self.scheduler = Scheduler(
            self.pool,
            self.engine.layout.groups,
            vocab=self.engine.vocab,
            context=self.engine.context,
            limits=self.limits,
        )
        self._runner = StepRunner(self.engine)
        self._random = np.random.default_rng(0)
        self._added = 0

    def add(self, prompt: int, output: int) -> None:
        """A greedy request of `prompt` random tokens, which no other has."""
        self._added += 1
        tokens = self._random.integers(100, self.engine.vocab, prompt).tolist()
        self.scheduler.add(
            Sequence(
                request_id=str(self._added),
                attempt=1,
                tokens=tokens,
                prompt_tokens=prompt,
                sampling=Sampling(max_tokens=output, temperature=0.0, ignore_eos=True),
                salt=tenant_salt("bench"),
                limit=prompt + output,
                stop=frozenset(),
                arrival=time.monotonic(),
            )
        )

    def turn(self) -> Turn:
        began = time.perf_counter()
        plan = self.scheduler.schedule(time.monotonic())
        assert plan is not None
        assert not self.scheduler.check(plan)
        started = time.perf_counter()
        rows = self._runner.run(plan)
        ended = time.perf_counter()
        result = self.scheduler.commit(plan, rows, sample_row, ended - started)
        seconds = time.perf_counter() - began
        tokens = sum(len(advance.tokens) for advance in result.advances)
        return Turn(len(plan.step.tokens), tokens, seconds, ended - started)

    def drain(self) -> list[Turn]:
        """Until nothing is left to do."""
        turns = []
        while not self.scheduler.idle:
            turns.append(self.turn())
        return turns

    def prefill(self, prompt: int) -> float:
        """Tokens per second of one prompt alone, first token included."""
        self.add(prompt, 1)
        return prompt / sum(turn.seconds for turn in self.drain())

    def decode(self, batch: int, prompt: int, output: int) -> list[Turn]:
        """The steps of `batch` requests in which all of them decode: at least `output`."""
        # Prompts are computed in steps of their own or beside others', and whoever is first goes on meanwhile.
        waiting = -(-batch * prompt // self.limits.step_tokens) + 2
        for _ in range(batch):
            self.add(prompt, output + waiting + batch)
        turns = self.drain()
        return [turn for turn in turns if turn.rows == batch and turn.tokens == batch][:output]

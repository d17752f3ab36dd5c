"""What prefill and decode workers have in common: attempts, their events, and a service's life around an engine."""

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import msgspec
import structlog
from opentelemetry import trace

from paceline.contracts import subjects
from paceline.contracts.errors import InvalidRequest, PacelineError, Unavailable, WorkerLost
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import (
    Ack,
    Beacon,
    CachedTokens,
    Cancel,
    Confirm,
    Done,
    Load,
    ModelInfo,
    Resend,
    Started,
    Timings,
    Work,
)
from paceline.engine.plan import Advance, StepResult
from paceline.engine.sequence import Sequence
from paceline.runtime.context import Context
from paceline.runtime.tasks import Tasks
from paceline.telemetry import traces
from paceline.worker.attempts import Attempt, Attempts
from paceline.worker.host import EngineHost
from paceline.worker.outbox import Outbox
from paceline.worker.pagestore import PageStore
from paceline.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

FLUSH_S = 3.0
"""How long a worker that leaves waits for its last events to be sent."""


@dataclass(slots=True)
class Counters:
    """Since the start of the worker."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    integrity: int = 0
    failed: int = 0


class WorkerService(ABC):
    """A `Service` that hosts an engine. Subclasses say what an attempt holds (`release`) and what follows a step."""

    def __init__(self, context: Context, settings: WorkerSettings) -> None:
        self.context = context
        self.host = EngineHost(context, settings)
        self.attempts = Attempts()
        self.outbox = Outbox(context.bus, context.identity.worker)
        self.store = PageStore(context, self.host)
        self.requests = Tasks()
        self.counters = Counters()
        self._settled = asyncio.Event()
        self._ready = False
        # A confirmed attempt is forgotten like a cancelled one; only that it rarely holds anything any more.
        context.api.serve(subjects.CANCEL, self._cancel)
        context.api.serve(subjects.CONFIRM, self._cancel)
        context.api.serve(subjects.RESEND, self._resend)
        context.roster.on_lost(self._lost)

    @abstractmethod
    def release(self, attempt: Attempt) -> None:
        """Give back everything that the attempt holds, now or as soon as it is safe, and settle it."""

    @abstractmethod
    def advanced(self, attempt: Attempt, advance: Advance) -> None:
        """A step advanced this live attempt; its tokens are published already."""

    @abstractmethod
    def filling(self, attempt: Attempt) -> None:
        """The attempt's sequence got its pages and waits for their content."""

    @abstractmethod
    def worker_lost(self, beacon: Beacon) -> None:
        """A worker of any role is gone."""

    async def start(self) -> None:
        await self.host.start(self._on_step)
        self._ready = True
        self.outbox.start(self.context.tasks)
        self.store.start()
        self.context.tasks.spawn(self._keep_house(), name="housekeeping")

    def model(self) -> ModelInfo | None:
        return self.host.model()

    def leases(self) -> int:
        """Everything besides sequences and pages that must be zero when idle."""
        return len(self.attempts) + self.store.unsaved

    def load(self) -> Load:
        counters = {name: getattr(self.counters, name) for name in self.counters.__slots__}
        counters["store_damaged"] = self.store.damaged
        return msgspec.structs.replace(
            self.host.load(), leases=self.leases(), tasks=len(self.requests), counters=counters
        )

    async def drain(self) -> None:
        self._ready = False
        while self.attempts.live:
            self._settled.clear()
            await self._settled.wait()
        await self.outbox.flush()

    async def close(self) -> None:
        for attempt in self.attempts.live:
            self.outbox.fail(attempt, Unavailable("the worker is leaving"))
        try:
            async with asyncio.timeout(FLUSH_S):
                await self.outbox.flush()
        except TimeoutError:
            log.warning("events_not_sent")
        # While the engine thread runs, to which whoever is interrupted gives its pages back.
        await self.context.tasks.cancel_all()
        await self.requests.cancel_all()
        await self.host.close()

    # For subclasses.

    def is_repeat(self, work: Work) -> bool:
        """Whether this attempt was taken before. Raises `Unavailable` for new work that cannot be taken now, and
        `Cancelled` for work that nobody wants any more."""
        if self.attempts.is_repeat(work):
            return True
        if not self._ready:
            raise Unavailable(f"{self.context.identity.worker} takes no new work")
        return False

    def take(self, work: Work, sequence: Sequence, *, runs_prompt: bool) -> Attempt:
        """Know an attempt from now on. One that it replaces is released."""
        span = traces.tracer().start_span(
            f"{self.context.identity.role} {work.request_id}",
            attributes={
                "paceline.request_id": work.request_id,
                "paceline.attempt": work.attempt,
                "paceline.worker": self.context.identity.worker,
                "gen_ai.usage.input_tokens": len(work.prompt),
            },
        )
        attempt = Attempt(work, sequence, span, runs_prompt)
        replaced = self.attempts.add(attempt)
        if replaced is not None and replaced.live:
            self.release(replaced)
        self.counters.requests += 1
        return attempt

    async def run_prompt(self, attempt: Attempt) -> None:
        """Fetch what the kvstore has of the prompt, then queue its sequence."""
        began = time.monotonic()
        with trace.use_span(attempt.span):
            await self.store.fetch(attempt.sequence)
        attempt.store_s = time.monotonic() - began
        await self.queue(attempt)

    async def queue(self, attempt: Attempt) -> None:
        """Give an attempt's sequence to the scheduler, once its grammar is compiled. Fails it where that cannot be."""
        try:
            await self.host.constrain(attempt.sequence)
        except InvalidRequest as error:
            self.fail(attempt, error)
        if attempt.live:
            await self.host.thread.call(lambda scheduler: scheduler.add(attempt.sequence))

    def settle(self, attempt: Attempt) -> None:
        attempt.settle()
        self._settled.set()

    def fail(self, attempt: Attempt, error: PacelineError) -> None:
        """End an attempt with an error that its gateway hears of, and release it."""
        if not attempt.live:
            return
        log.warning(
            "attempt_failed", request_id=attempt.work.request_id, code=error.code, error=error.message
        )
        self.counters.failed += 1
        self.counters.integrity += error.code == "integrity"
        attempt.span.record_exception(error)
        self.outbox.fail(attempt, error)
        self.release(attempt)

    def done(self, attempt: Attempt, advance: Advance) -> None:
        """Publish the terminal event of a sequence that has ended."""
        sequence = advance.sequence
        if advance.finish_reason is None:
            raise ValueError(f"sequence {sequence.request_id} has not ended")
        self.counters.drafted += sequence.drafted
        self.counters.accepted += sequence.accepted
        attempt.span.set_attribute("gen_ai.usage.output_tokens", sequence.output_tokens)
        attempt.span.add_event("finish", {"reason": advance.finish_reason})
        self.outbox.end(
            attempt,
            Done(
                request_id=sequence.request_id,
                attempt=sequence.attempt,
                worker=self.context.identity.worker,
                finish_reason=advance.finish_reason,
                tokens=advance.index + len(advance.tokens),
                drafted=sequence.drafted,
                accepted=sequence.accepted,
                steps=sequence.steps,
                compute=sequence.compute,
                handoff=attempt.handoff_s,
            ),
        )

    def started(self, attempt: Attempt, advance: Advance) -> None:
        """Publish what the prompt reused and cost. Comes right before its first token."""
        sequence = attempt.sequence
        cached = sequence.cached or CachedTokens()
        self.counters.prompt_tokens += len(attempt.work.prompt)
        self.counters.cached_tokens += cached.total
        attempt.span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached.total)
        attempt.span.add_event("first_token")
        self.outbox.started(
            attempt,
            Started(
                request_id=sequence.request_id,
                attempt=sequence.attempt,
                worker=self.context.identity.worker,
                cached=cached,
                timings=Timings(
                    queue=max(0.0, sequence.started - sequence.arrival - attempt.store_s),
                    store=attempt.store_s,
                    compute=advance.prompt_compute,
                ),
                prompt_logprobs=sequence.prompt_logprobs,
            ),
        )
        self.store.save(sequence.hashes[: len(attempt.work.prompt) // PAGE_TOKENS])

    # The engine's results.

    def _on_step(self, result: StepResult) -> None:
        for failure in result.failures:
            attempt = self.attempts.of(failure.sequence)
            if attempt is not None:
                self.fail(attempt, failure.error)
        live: list[tuple[Attempt, Advance]] = []
        news: list[tuple[Attempt, Advance]] = []
        for advance in result.advances:
            if (attempt := self._live(advance.sequence)) is None:
                continue
            live.append((attempt, advance))
            if advance.tokens:
                if not attempt.tokens and attempt.runs_prompt:
                    self.started(attempt, advance)
                news.append((attempt, advance))
        self.outbox.tokens(news)
        for attempt, advance in live:
            self.counters.output_tokens += len(advance.tokens)
            self.advanced(attempt, advance)
        for sequence in result.filling:
            if attempt := self._live(sequence):
                self.filling(attempt)

    def _live(self, sequence: Sequence) -> Attempt | None:
        attempt = self.attempts.of(sequence)
        return attempt if attempt is not None and attempt.live else None

    # Requests of gateways.

    async def _cancel(self, message: Cancel | Confirm) -> Ack:
        self._forget(message.request_id, message.attempt)
        return Ack()

    async def _resend(self, message: Resend) -> Ack:
        attempt = self.attempts.get(message.request_id, message.attempt)
        if attempt is None:
            raise WorkerLost(f"attempt {message.attempt} at {message.request_id} is not known here")
        self.outbox.again(attempt, message.index)
        return Ack()

    def _forget(self, request_id: str, number: int) -> None:
        attempt = self.attempts.forget(request_id, number)
        if attempt is not None and attempt.live:
            self.release(attempt)

    def _lost(self, beacon: Beacon) -> None:
        if beacon.role == "gateway":
            for attempt in self.attempts.of_gateway(f"{beacon.worker}-{beacon.incarnation}"):
                self._forget(attempt.work.request_id, attempt.work.attempt)
        self.worker_lost(beacon)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for attempt in self.attempts.expire(time.monotonic()):
                self._forget(attempt.work.request_id, attempt.work.attempt)
            for attempt in self.attempts.live:
                if time.time() > attempt.work.deadline:
                    self.fail(attempt, Unavailable("the request's deadline has passed"))

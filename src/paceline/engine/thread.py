"""The engine thread: it alone owns scheduler, pages, sampler and engine, so that none of them needs a lock.

Commands enter by a queue and run between steps; everything that a step produced leaves by one callback on the event
loop.
"""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from paceline.contracts.errors import InternalError
from paceline.engine.interface import Engine
from paceline.engine.plan import Plan, StepResult, build_moves
from paceline.engine.runner import StepRunner, sample_row
from paceline.engine.scheduler import Scheduler

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Pace(msgspec.Struct, frozen=True):
    """Averages over recent steps, for beacons."""

    step_s: float = 0.0
    tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0

    def after(self, plan: Plan, result: StepResult, seconds: float) -> "Pace":
        produced = sum([len(a.tokens) for a in result.advances])
        computed = sum([e.own for e in plan.entries if e.own > 1])
        return Pace(
            step_s=_blend(self.step_s, seconds),
            tokens_per_s=_blend(self.tokens_per_s, produced / seconds),
            prefill_tokens_per_s=(
                _blend(self.prefill_tokens_per_s, computed / seconds)
                if computed
                else self.prefill_tokens_per_s
            ),
        )


class EngineThread:
    """Runs `engine` under `scheduler`. `on_step` is called on the event loop, in order of the steps."""

    def __init__(self, engine: Engine, scheduler: Scheduler, on_step: Callable[[StepResult], None]) -> None:
        self._engine = engine
        self._runner = StepRunner(engine)
        self._scheduler = scheduler
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.pace = Pace()

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """End after the current step. Sequences that still run are forgotten."""
        self._commands.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    def call(self, command: Callable[[Scheduler], T]) -> "asyncio.Future[T]":
        """Run `command` between two steps. Cancelling the future does not stop a command that has begun."""
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = command(self._scheduler)
            except Exception as error:
                self._loop.call_soon_threadsafe(_fail, future, error)
            else:
                self._loop.call_soon_threadsafe(_resolve, future, result)

        self._commands.put(run)
        return future

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException:
            if self._loop.is_closed():
                return
            # Without this thread the worker would look alive and answer nobody; whoever started it starts another.
            log.exception("engine_thread_died")
            os._exit(os.EX_SOFTWARE)

    def _turn(self) -> None:
        self._take_commands(block=self._scheduler.idle)
        plan = self._scheduler.schedule(time.monotonic())
        if plan is not None:
            self._loop.call_soon_threadsafe(self._on_step, self._step(plan))
        elif not self._scheduler.idle:
            # Whoever waits needs pages that only a command gives back.
            self._take_commands(block=True)

    def _step(self, plan: Plan) -> StepResult:
        if failures := self._scheduler.check(plan):
            return StepResult((), plan.filling, tuple(failures))
        if not plan.entries:
            return StepResult((), plan.filling, ())
        start = time.perf_counter()
        try:
            rows = self._runner.run(plan)
        except Exception:
            log.exception("step_failed", sequences=len(plan.entries), tokens=len(plan.step.tokens))
            return self._without_the_guilty(plan)
        result = self._scheduler.commit(plan, rows, sample_row, time.perf_counter() - start)
        if result.moves.size:
            self._engine.execute(build_moves(result.moves))
        self.pace = self.pace.after(plan, result, time.perf_counter() - start)
        return result

    def _without_the_guilty(self, plan: Plan) -> StepResult:
        """What cannot run alone fails alone: a batch that failed runs again in halves, down to single sequences."""
        if len(plan.entries) == 1:
            return self._scheduler.fail(plan, InternalError("the engine cannot run this request"))
        first, second = plan.halves()
        return self._step(first).and_then(self._step(second))

    def _take_commands(self, *, block: bool) -> None:
        # Nobody else takes any, so that one that is there stays there.
        while block or not self._commands.empty():
            self._commands.get()()
            block = False

    def _stop(self) -> None:
        self._stopping = True


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[T]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else 0.9 * old + 0.1 * new

"""What a worker tells gateways: token frames and events, in order, and again when asked."""

import asyncio
from collections import defaultdict

import structlog

from paceline.bus.interface import Bus
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.errors import PacelineError
from paceline.contracts.frames import Tokens, encode_frame
from paceline.contracts.messages import Done, Event, Failed, Started
from paceline.engine.plan import Advance
from paceline.runtime.tasks import Tasks
from paceline.worker.attempts import Attempt

log = structlog.get_logger(__name__)

MAX_PIECE = 4096
"""Tokens that are sent again in one frame: with their log probabilities they have to fit into a message."""


class Outbox:
    """One queue for all gateways, so that the order of publishing is the order of calling."""

    def __init__(self, bus: Bus, worker: str) -> None:
        self._bus = bus
        self._worker = worker
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def start(self, tasks: Tasks) -> None:
        tasks.spawn(self._send(), name="outbox")

    async def flush(self) -> None:
        """Wait until everything queued so far has been given to the bus."""
        await self._queue.join()

    def started(self, attempt: Attempt, event: Started) -> None:
        attempt.started = event
        self._event(attempt, event)

    def tokens(self, news: list[tuple[Attempt, Advance]]) -> None:
        """Output tokens of one step: one frame per gateway."""
        frames: defaultdict[str, list[Tokens]] = defaultdict(list)
        for attempt, advance in news:
            if not attempt.tokens:
                attempt.base = advance.index
            attempt.tokens.extend(advance.tokens)
            attempt.logprobs.extend(advance.logprobs)
            work = attempt.work
            frames[work.gateway].append(
                Tokens(work.request_id, work.attempt, advance.index, advance.tokens, advance.logprobs)
            )
        for gateway, entries in frames.items():
            self._put(gateway, encode_frame(entries))

    def end(self, attempt: Attempt, event: Done | Failed) -> None:
        """Publish the terminal event. The first one counts; an attempt has no second."""
        if attempt.end is None:
            attempt.end = event
            self._event(attempt, event)

    def fail(self, attempt: Attempt, error: PacelineError) -> None:
        self.end(
            attempt,
            Failed(
                request_id=attempt.work.request_id,
                attempt=attempt.work.attempt,
                worker=self._worker,
                code=error.code,
                message=error.message,
            ),
        )

    def again(self, attempt: Attempt, index: int) -> None:
        """Publish everything from output token `index` on once more."""
        if attempt.started is not None:
            self._event(attempt, attempt.started)
        for begin in range(max(0, index - attempt.base), len(attempt.tokens), MAX_PIECE):
            self._put(attempt.work.gateway, encode_frame([_piece(attempt, begin)]))
        if attempt.end is not None:
            self._event(attempt, attempt.end)

    def _event(self, attempt: Attempt, event: Event) -> None:
        self._put(attempt.work.gateway, encode(event))

    def _put(self, gateway: str, data: bytes) -> None:
        self._queue.put_nowait((subjects.events(gateway), data))

    async def _send(self) -> None:
        while True:
            subject, data = await self._queue.get()
            try:
                await self._bus.publish(subject, data)
            except Exception:
                # That gateway will ask again; the others' messages wait behind this one.
                log.exception("publish_failed", subject=subject, size=len(data))
            finally:
                self._queue.task_done()


def _piece(attempt: Attempt, begin: int) -> Tokens:
    """Published tokens, from the one in place `begin` on."""
    part = slice(begin, begin + MAX_PIECE)
    return Tokens(
        attempt.work.request_id,
        attempt.work.attempt,
        attempt.base + begin,
        tuple(attempt.tokens[part]),
        tuple(attempt.logprobs[part]),
    )

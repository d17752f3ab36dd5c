"""Runs items of batches while live traffic leaves room, a bounded number at once."""

import asyncio
import time
import uuid
from typing import Any

import msgspec
import structlog

from paceline.bus.interface import Delivery
from paceline.bus.work import Work
from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.gateway import offline
from paceline.gateway.auth import Tenant
from paceline.gateway.batches import names
from paceline.gateway.batches.batch import Batch
from paceline.gateway.batches.endpoints import dialect_of
from paceline.gateway.batches.keeper import Keeper
from paceline.gateway.batches.queue import Item, Queue
from paceline.gateway.batches.results import answered, outcome_of
from paceline.gateway.batches.store import Store
from paceline.gateway.errors import http_problem, timed_out
from paceline.gateway.front import Front
from paceline.runtime.tasks import Tasks

log = structlog.get_logger(__name__)

# What passes by itself, however long it takes: the batch's window bounds it.
_PASSING = (429, 502, 503)
# What may be the request's fault or ours.
_DOUBTFUL = (500, 504)
_TRIES = 3
_LONGEST_PAUSE_S = 30.0
# An answer is worth waiting for a store that is away.
_PATIENCE_S = 60.0
# With so few items left in the queue, the one that just ended may have been its batch's last.
_FEW = 64

_items = msgspec.json.Decoder(Item)


class Worker:
    """One gateway's share of the queue."""

    def __init__(self, front: Front, store: Store, queue: Queue, keeper: Keeper) -> None:
        self._front = front
        self._store = store
        self._queue = queue
        self._keeper = keeper
        self._tasks = Tasks()
        self._places = asyncio.Semaphore(front.settings.batch_max_running)
        self._running: dict[str, set[asyncio.Task[None]]] = {}
        self._behind = 0

    async def pull(self) -> Work | None:
        """The next item, once there is a place for it."""
        await self._places.acquire()
        work = None
        try:
            work = await self._queue.next_item()
        finally:
            if work is None:
                self._places.release()
        return work

    def begin(self, work: Work) -> None:
        """Run what `pull` gave."""
        self._behind = work.behind
        batch_id = names.batch_of(work.subject)
        task = self._tasks.spawn(self._run(work), name="batch item")
        self._running.setdefault(batch_id, set()).add(task)
        task.add_done_callback(lambda _: self._ended(batch_id, task))

    def on_stop(self, delivery: Delivery) -> None:
        """Nobody wants the results of this batch's items any more."""
        for task in self._running.get(names.last_token(delivery.subject), ()):
            task.cancel()

    async def drain(self) -> None:
        """Wait for what runs."""
        while self._running:
            await asyncio.wait([task for tasks in self._running.values() for task in tasks])

    async def close(self) -> None:
        """Give back what runs."""
        await self._tasks.cancel_all()

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        self._places.release()
        tasks = self._running[batch_id]
        tasks.discard(task)
        if not tasks:
            del self._running[batch_id]

    async def _run(self, work: Work) -> None:
        item = _items.decode(work.data)
        try:
            async with work.kept():
                pause = await self._settle(work, item)
        except asyncio.CancelledError:
            await work.again()
            raise
        except Unavailable as e:
            log.warning("batch_item_interrupted", batch=item.batch, line=item.line, error=e.message)
            pause = _pause(work)
        if pause is not None:
            await work.again(pause)

    async def _settle(self, work: Work, item: Item) -> float | None:
        """Give the item a result, or say in how many seconds to try again."""
        kept = await self._store.batch(item.tenant, item.batch)
        if kept is None or not kept.batch.runs:
            await work.done()
            return None
        # Whoever had it before may have died after storing.
        if work.deliveries == 1 or not await self._store.has_result(item.batch, item.line):
            # Each try is a request of its own to the mesh, where an earlier one may still run.
            request_id = uuid.uuid4().hex
            status, body = await self._answer(kept.batch, item, request_id)
            if status in _PASSING or (status in _DOUBTFUL and work.deliveries < _TRIES):
                log.info("batch_item_put_off", batch=item.batch, line=item.line, status=status)
                return 0.0 if self._front.draining else _pause(work)
            await self._keep(item, request_id, status, body)
        await work.done()
        if self._behind < _FEW:
            await self._keeper.check(item.tenant, item.batch)
        return None

    async def _answer(self, batch: Batch, item: Item, request_id: str) -> tuple[int, Any]:
        dialect = dialect_of(batch.endpoint)
        seconds = self._front.settings.request_timeout_s
        # Between this and the request's own place nothing else can take the room.
        await self._front.admission.spare()
        try:
            async with asyncio.timeout(seconds):
                return await offline.answer(
                    self._front,
                    dialect,
                    bytes(item.body),
                    Tenant(batch.tenant, batch.salt),
                    request_id,
                    time.time() + seconds,
                )
        except TimeoutError:
            problem = timed_out(seconds)
            return problem.status, dialect.problem(problem, request_id)

    async def _keep(self, item: Item, request_id: str, status: int, body: Any) -> None:
        result = answered(item.batch, item.line, item.custom_id, request_id, status, body)
        try:
            await self._insist(item, status, result)
        except InvalidRequest as e:
            problem = http_problem(500, f"The answer cannot be stored: {e.message}")
            result = answered(
                item.batch, item.line, item.custom_id, request_id, problem.status, problem.body()
            )
            await self._insist(item, problem.status, result)

    async def _insist(self, item: Item, status: int, result: bytes) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await self._store.put_result(item.batch, item.line, outcome_of(status), result)
            except Unavailable:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(1.0)
            else:
                return


def _pause(work: Work) -> float:
    """Longer each time."""
    return min(_LONGEST_PAUSE_S, 2.0 ** min(work.deliveries - 1, 8))

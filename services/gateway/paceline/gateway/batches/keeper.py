"""What has to be done for a batch beside its items: queue them, notice that all are done, cancel, expire.

Every step may be cut short and done again, by anyone: what is stored decides what comes next.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any

import structlog

from paceline.bus.interface import Bus
from paceline.bus.jetstream import Conflict
from paceline.gateway.batches import names, results
from paceline.gateway.batches.batch import Batch, Final
from paceline.gateway.batches.endpoints import is_run
from paceline.gateway.batches.files import OutputFile
from paceline.gateway.batches.lines import Numbered, read_chunk
from paceline.gateway.batches.names import Outcome
from paceline.gateway.batches.queue import Queue
from paceline.gateway.batches.store import Kept, Store

log = structlog.get_logger(__name__)

# Whoever finishes the last item looks at once; this is for when they died.
_LOOK_S = 15.0
# Messages on their way to the server at the same time.
_AT_ONCE = 16


class Keeper:
    """Looks after batches of any tenant. All methods raise `Unavailable`."""

    def __init__(self, bus: Bus, store: Store, queue: Queue, clock: Callable[[], float] = time.time) -> None:
        self._bus = bus
        self._store = store
        self._queue = queue
        self._clock = clock

    async def tend(self, tenant: str, batch_id: str) -> float | None:
        """Do what can be done now; in how many seconds to look again, or None when the batch is over."""
        kept = await self._store.batch(tenant, batch_id)
        try:
            while kept is not None and not kept.batch.over:
                after = await self._step(tenant, kept)
                if after is None:
                    return min(_LOOK_S, max(0.0, kept.batch.expires_at - self._clock()))
                kept = after
        except Conflict:
            # Somebody else was faster; whatever they left is there to be seen.
            return 0.0
        await self._queue.drop_looks(tenant, batch_id)
        return None

    async def check(self, tenant: str, batch_id: str) -> None:
        """After a result: end the batch if that was the last."""
        kept = await self._store.batch(tenant, batch_id)
        # While its items are being queued, whoever does that looks again afterwards.
        if kept is not None and kept.batch.status == "in_progress":
            await self.tend(tenant, batch_id)

    async def _step(self, tenant: str, kept: Kept) -> Kept | None:
        """The batch one state further, or None when it has to wait."""
        batch = kept.batch
        if batch.status == "finalizing":
            return await self._end(tenant, kept)
        if batch.status == "cancelling":
            await self._stop(batch)
            return await self._close(tenant, kept, "cancelled")
        if self._now() >= batch.expires_at:
            await self._stop(batch)
            await self._fill(batch)
            return await self._close(tenant, kept, "expired")
        if batch.status == "validating":
            return await self._begin(tenant, kept)
        tally = await self._store.progress(batch)
        if tally.completed.requests + tally.failed.requests < batch.total:
            return None
        return await self._close(tenant, kept, "completed")

    async def _begin(self, tenant: str, kept: Kept) -> Kept:
        batch = kept.batch
        queued = 0
        async for lines in _groups(self._lines(batch)):
            await _all(self._queue.add_item(tenant, batch.id, line) for line in lines)
            queued += len(lines)
        if queued != batch.total:
            await self._stop(batch)
            message = f"The file {batch.input_file!r} is gone"
            return await self._store.replace(tenant, kept, batch.broken(message, self._now()))
        log.info("batch_begun", batch=batch.id, requests=queued)
        return await self._store.replace(tenant, kept, batch.begun(self._now()))

    async def _stop(self, batch: Batch) -> None:
        """Nobody begins another item of it, and those that run are cancelled."""
        await self._queue.drop_items(batch.id)
        await self._bus.publish(names.stop(batch.id), b"")

    async def _fill(self, batch: Batch) -> None:
        """Every line that has no result gets one that says so."""
        finished = await self._store.finished_lines(batch.id)
        async for lines in _groups(self._lines(batch)):
            left = [line for line in lines if line.number not in finished]
            await _all(
                self._store.put_result(
                    batch.id, n.number, "failed", results.expired(batch.id, n.number, n.line.custom_id)
                )
                for n in left
            )

    async def _close(self, tenant: str, kept: Kept, ends_as: Final) -> Kept:
        tally = await self._store.tally(kept.batch.id)
        return await self._store.replace(tenant, kept, kept.batch.closing(ends_as, tally, self._now()))

    async def _end(self, tenant: str, kept: Kept) -> Kept:
        batch = kept.batch
        if is_run(batch.endpoint):
            await self._store.drop_data(batch.input_file)
        else:
            for outcome in names.OUTCOMES:
                await self._show(tenant, batch, outcome)
        ended = await self._store.replace(tenant, kept, batch.ended(self._now()))
        log.info(
            "batch_ended",
            batch=batch.id,
            status=ended.batch.status,
            total=batch.total,
            completed=batch.tally.completed.requests,
            failed=batch.tally.failed.requests,
        )
        return ended

    async def _show(self, tenant: str, batch: Batch, outcome: Outcome) -> None:
        file_id = batch.output_id(outcome)
        if file_id is None:
            return
        file = OutputFile(
            id=file_id,
            filename=f"{file_id}.jsonl",
            # When it began, as its oldest result may be as old as that and goes first.
            created_at=batch.created_at,
            bytes=batch.tally.part(outcome).size,
            batch=batch.id,
            outcome=outcome,
            upto=batch.tally.upto,
        )
        await self._store.put_file(tenant, file)

    async def _lines(self, batch: Batch) -> AsyncIterator[Numbered]:
        first = 1
        async for chunk in self._store.data(batch.input_file):
            for numbered in read_chunk(first, chunk):
                yield numbered
            first += chunk.count(b"\n")

    def _now(self) -> int:
        return int(self._clock())


async def _groups(lines: AsyncIterator[Numbered]) -> AsyncIterator[list[Numbered]]:
    group: list[Numbered] = []
    async for line in lines:
        group.append(line)
        if len(group) == _AT_ONCE:
            yield group
            group = []
    if group:
        yield group


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at once. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            for piece in work:
                group.create_task(piece)
    except ExceptionGroup as e:
        raise e.exceptions[0] from e

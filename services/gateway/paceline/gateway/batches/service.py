"""Batches of one gateway: what clients ask for, and its share of everybody's work."""

import asyncio
import contextlib

import msgspec
from aiohttp import web

from paceline.bus.interface import Bus, Subscription
from paceline.bus.jetstream import JetStream
from paceline.bus.work import Work
from paceline.contracts.errors import Unavailable
from paceline.gateway.batches import names
from paceline.gateway.batches.consuming import consume
from paceline.gateway.batches.desk import Desk
from paceline.gateway.batches.keeper import Keeper
from paceline.gateway.batches.queue import Look, Queue
from paceline.gateway.batches.routes_batches import BatchRoutes
from paceline.gateway.batches.routes_files import FileRoutes
from paceline.gateway.batches.routes_runs import RunRoutes
from paceline.gateway.batches.store import Store
from paceline.gateway.batches.worker import Worker
from paceline.gateway.front import Front
from paceline.runtime.tasks import Tasks

_looks = msgspec.json.Decoder(Look)


class Batches:
    """`runs` answers Workers AI's requests that are to be queued."""

    def __init__(self, bus: Bus, front: Front) -> None:
        self._bus = bus
        jetstream = JetStream(bus)
        self._store = Store(jetstream)
        self._queue = Queue(jetstream)
        self._keeper = Keeper(bus, self._store, self._queue)
        self._worker = Worker(front, self._store, self._queue, self._keeper)
        self._desk = Desk(front, jetstream, self._store, self._queue)
        self._files = FileRoutes(front, self._desk, self._store)
        self._batches = BatchRoutes(front, self._desk, self._store)
        self.runs = RunRoutes(front, self._desk, self._store)
        self._loops = Tasks()
        self._stops: Subscription | None = None

    def add_routes(self, app: web.Application) -> None:
        self._files.add_to(app)
        self._batches.add_to(app)

    async def start(self) -> None:
        """Take work, as soon as there is a queue."""
        self._stops = await self._bus.subscribe(names.STOPS, self._worker.on_stop)
        self._loops.spawn(self._take_items(), name="batch items")
        self._loops.spawn(self._take_looks(), name="batch looks")

    async def drain(self) -> None:
        """Take no more work, and wait for what runs."""
        await self._loops.cancel_all()
        await self._worker.drain()

    async def close(self) -> None:
        """What still runs goes back to the queue."""
        await self._loops.cancel_all()
        await self._worker.close()
        if self._stops is not None:
            await self._stops.unsubscribe()

    async def _take_items(self) -> None:
        async with contextlib.aclosing(consume(self._worker.pull, self._make)) as items:
            async for work in items:
                self._worker.begin(work)

    async def _take_looks(self) -> None:
        async with contextlib.aclosing(consume(self._queue.next_look, self._make)) as looks:
            async for work in looks:
                # In a task of its own, whose failure would not end this one.
                await asyncio.wait((self._loops.spawn(self._look(work), name="batch look"),))

    async def _look(self, work: Work) -> None:
        look = _looks.decode(work.data)
        after: float | None = 1.0
        with contextlib.suppress(Unavailable):
            async with work.kept():
                after = await self._keeper.tend(look.tenant, look.batch)
        if after is None:
            await work.done()
        else:
            await work.again(after)

    async def _make(self) -> None:
        await self._store.make()
        await self._queue.make()

"""The life of one worker on a bus, from its first beacon to its last."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import structlog

from paceline.bus.interface import Bus
from paceline.bus.service import MicroService
from paceline.contracts.messages import Ack, Drain, Load
from paceline.contracts.subjects import DRAIN
from paceline.runtime.beacons import Beacons
from paceline.runtime.context import Context
from paceline.runtime.identity import Identity
from paceline.runtime.roster import Roster
from paceline.runtime.service import Service
from paceline.runtime.tasks import Tasks

log = structlog.get_logger(__name__)


async def live(
    identity: Identity,
    bus: Bus,
    description: str,
    build: Callable[[Context], Service],
    leave: asyncio.Event,
    *,
    drain_s: float,
) -> None:
    """Start the service that `build` makes, serve until `leave` is set or someone asks for a drain, then close it.

    Work that still runs `drain_s` seconds after that is given up. Raises what the service's start raises.
    """

    def load() -> Load:
        return service.load()

    async def drain(_: Drain) -> Ack:
        leave.set()
        return Ack()

    api = MicroService(bus, identity, description=description, metadata={}, load=load)
    api.serve(DRAIN, drain)
    context = Context(identity, bus, api, Roster(), Tasks())
    service = build(context)
    beacons = Beacons(identity, bus, api, service)
    async with AsyncExitStack() as exits:
        exits.push_async_callback(beacons.send)
        exits.callback(setattr, api, "state", "gone")
        # Not in the context: the service's own tasks must be none when it is idle.
        own_tasks = Tasks()
        exits.push_async_callback(own_tasks.cancel_all)
        exits.push_async_callback(context.roster.close)
        exits.push_async_callback(api.close)
        exits.push_async_callback(context.tasks.cancel_all)
        exits.push_async_callback(service.close)

        # Without beacons the others take this worker for dead, so then it must go.
        own_tasks.spawn(beacons.run(), name="beacons").add_done_callback(lambda _: leave.set())
        await context.roster.start(bus)
        await api.start()
        starting = asyncio.create_task(service.start(), name="start")
        if not await finishes_before(leave, starting):
            return
        if model := service.model():
            api.metadata |= {"model": model.name, "engine": model.engine, "kv_dtype": model.kv_dtype}
        # What a start leaves is for life, and a collection that looks at it stops the loop for 50 ms.
        gc.collect()
        gc.freeze()
        api.state = "ready"
        log.info("service_ready", role=identity.role)
        await beacons.send()
        await leave.wait()
        api.state = "draining"
        log.info("service_draining", role=identity.role)
        await beacons.send()
        await _drain(service, api, drain_s)


async def finishes_before(leave: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Whether `task` ended before `leave` was set; if not, it is cancelled. Raises what it raised."""
    leaving = asyncio.create_task(leave.wait(), name="leave")
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        return task.done()
    finally:
        leaving.cancel()
        task.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _drain(service: Service, api: MicroService, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await service.drain()
            await api.drain()
    except TimeoutError:
        log.warning("drain_gave_up", after_s=seconds)
    except Exception:
        log.exception("drain_failed")

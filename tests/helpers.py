"""Builders for tests of services."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from paceline.bus.interface import Bus, Delivery
from paceline.bus.service import MicroService
from paceline.contracts import subjects
from paceline.contracts.messages import Load, Role
from paceline.runtime.context import Context
from paceline.runtime.identity import new_identity
from paceline.runtime.life import live
from paceline.runtime.roster import Roster
from paceline.runtime.service import Service
from paceline.runtime.tasks import Tasks

S = TypeVar("S", bound=Service)


async def make_context(bus: Bus, role: Role, worker: str | None = None) -> Context:
    """A context on `bus` whose roster listens already. Services add their endpoints to `api` when they are built,
    so `await context.api.start()` comes after that. End it with `close_context`."""
    roster = Roster()
    await roster.start(bus)
    identity = new_identity(role, worker)
    api = MicroService(bus, identity, description=f"{role} under test", metadata={}, load=Load)
    return Context(identity, bus, api, roster, Tasks())


async def close_context(context: Context) -> None:
    """End what `make_context` began, and the bus."""
    await context.tasks.cancel_all()
    await context.api.close()
    await context.roster.close()
    await context.bus.close()


@asynccontextmanager
async def serving(
    bus: Bus, role: Role, build: Callable[[Context], S], worker: str | None = None, *, drain_s: float = 10.0
) -> AsyncIterator[S]:
    """The service that `build` makes, ready, with beacons and all else that `run` gives it. It is drained and closed
    at the end, and its bus too. Raises what its start raises."""
    identity = new_identity(role, worker)
    built: list[S] = []
    leave, ready = asyncio.Event(), asyncio.Event()

    def build_and_keep(context: Context) -> S:
        built.append(build(context))
        return built[0]

    def hear(delivery: Delivery) -> None:
        if subjects.decode_beacon(delivery.data).state == "ready":
            ready.set()

    await bus.subscribe(subjects.beacon(role, identity.worker), hear)
    life = asyncio.create_task(
        live(identity, bus, f"{role} under test", build_and_keep, leave, drain_s=drain_s)
    )
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({life, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not life.done():
            yield built[0]
    finally:
        leave.set()
        waiting.cancel()
        try:
            await life
        finally:
            await bus.close()


async def until(condition: Callable[[], bool], *, timeout: float = 5.0) -> None:
    """Wait for `condition`, for things that have no event of their own. Raises `TimeoutError`."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


async def settle() -> None:
    """Let everything run that is ready to run: on the memory bus, all that follows from what was done so far."""
    for _ in range(20):
        await asyncio.sleep(0)

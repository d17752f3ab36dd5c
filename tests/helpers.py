"""Builders for tests of services."""

from paceline.bus.interface import Bus
from paceline.bus.service import MicroService
from paceline.contracts.messages import Load, Role
from paceline.runtime.context import Context
from paceline.runtime.identity import new_identity
from paceline.runtime.roster import Roster
from paceline.runtime.tasks import Tasks


async def make_context(bus: Bus, role: Role, worker: str | None = None) -> Context:
    """A context on `bus` whose roster listens already. Services add their endpoints to `api` when they are built,
    so `await context.api.start()` comes after that. End it with `close_context`."""
    identity = new_identity(role, worker)
    roster = Roster()
    await roster.start(bus)
    api = MicroService(bus, identity, description=f"{role} under test", metadata={}, load=Load)
    return Context(identity, bus, api, roster, Tasks())


async def close_context(context: Context) -> None:
    """End what `make_context` began, and the bus."""
    await context.tasks.cancel_all()
    await context.api.close()
    await context.roster.close()
    await context.bus.close()

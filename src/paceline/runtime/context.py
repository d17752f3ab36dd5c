"""What a service is given to live with."""

from dataclasses import dataclass

from paceline.bus.interface import Bus
from paceline.bus.service import MicroService
from paceline.runtime.identity import Identity
from paceline.runtime.roster import Roster
from paceline.runtime.tasks import Tasks


@dataclass(frozen=True)
class Context:
    """One worker's own name, its bus, its endpoints, everybody else's state, and its background tasks."""

    identity: Identity
    bus: Bus
    api: MicroService
    roster: Roster
    tasks: Tasks

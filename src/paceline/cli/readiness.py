"""When a run is ready: every service says so in its beacon, and the gateway answers /health with 200."""

import asyncio
from collections.abc import Callable, Iterable

import aiohttp
import structlog

from paceline.bus.interface import Bus, Delivery
from paceline.cli.supervisor import Child
from paceline.contracts import subjects
from paceline.contracts.errors import ProtocolError

log = structlog.get_logger(__name__)

_POLL_S = 0.1


class Readiness:
    """Sets `Child.ready` from beacons for as long as the bus lives, and calls `on_ready` for each life."""

    def __init__(self, children: Iterable[Child], on_ready: Callable[[Child], None]) -> None:
        self._children = {child.name: child for child in children}
        self._on_ready = on_ready
        self._changed = asyncio.Event()

    async def start(self, bus: Bus) -> None:
        """Listen."""
        await bus.subscribe(subjects.beacon("*", "*"), self._beacon)

    async def wait(self) -> None:
        """Until all children are ready at once."""
        while not all(child.ready for child in self._children.values()):
            self._changed.clear()
            await self._changed.wait()

    def _beacon(self, delivery: Delivery) -> None:
        try:
            beacon = subjects.decode_beacon(delivery.data)
        except ProtocolError as e:
            log.warning("beacon_not_understood", error=e.message)
            return
        child = self._children.get(beacon.worker)
        # The last beacons of an earlier life may arrive after the next one began.
        if child and child.pid == beacon.pid and beacon.state == "ready" and not child.ready:
            child.ready = True
            self._changed.set()
            self._on_ready(child)


async def healthy(base_url: str) -> None:
    """Until /health at `base_url` is 200."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not await _answers(session, f"{base_url}/health"):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(_POLL_S)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False

"""Tells everybody that this worker lives and what it holds: twice a second, and at once when somebody is new."""

import asyncio
import contextlib

import structlog

from paceline.bus.interface import Bus
from paceline.bus.service import MicroService
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.errors import Unavailable
from paceline.contracts.messages import Beacon
from paceline.runtime.identity import Identity
from paceline.runtime.service import Service

log = structlog.get_logger(__name__)

_INTERVAL_S = 0.5


class Beacons:
    """The beacons of one service, whose state is that of its `api`."""

    def __init__(self, identity: Identity, bus: Bus, api: MicroService, service: Service) -> None:
        self._identity = identity
        self._bus = bus
        self._api = api
        self._service = service
        self._subject = subjects.beacon(identity.role, identity.worker)
        self._hello = asyncio.Event()

    async def run(self) -> None:
        """Send until cancelled."""
        await self._bus.subscribe(subjects.HELLO, lambda _: self._hello.set())
        while True:
            self._hello.clear()
            # Beacons that a client buffers while the server is away would arrive late and in a heap.
            if self._bus.connected:
                await self.send()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hello.wait(), _INTERVAL_S)

    async def send(self) -> None:
        """Send one now, because the state has changed."""
        own = self._identity
        beacon = Beacon(
            role=own.role,
            worker=own.worker,
            incarnation=own.incarnation,
            host=own.host,
            pid=own.pid,
            state=self._api.state,
            started=own.started,
            load=self._service.load(),
            model=self._service.model(),
        )
        try:
            await self._bus.publish(self._subject, encode(beacon))
        except Unavailable as e:
            log.warning("beacon_not_sent", error=e.message)

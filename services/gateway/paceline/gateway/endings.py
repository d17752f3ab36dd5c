"""How an attempt ends: what was reserved for it is given back, and its workers are told.

Telling is fire and forget for the request, but not for the gateway: a message that gets no answer is repeated as
long as its worker lives, because that worker holds pages for it.
"""

import asyncio
from typing import TypeVar

import structlog

from paceline.bus import rpc
from paceline.bus.interface import Bus
from paceline.contracts import subjects
from paceline.contracts.errors import PacelineError, Unavailable
from paceline.contracts.messages import Ack, Beacon, Cancel, Confirm
from paceline.contracts.subjects import Endpoint
from paceline.gateway.call import Call
from paceline.gateway.reservations import Reservations
from paceline.runtime.roster import Roster
from paceline.runtime.tasks import Tasks

log = structlog.get_logger(__name__)

Q = TypeVar("Q", Cancel, Confirm)

_TELL_AGAIN_S = (0.1, 0.4, 1.0)
_RECONNECT_S = 0.25


class Endings:
    """The only place where reservations and workers are let go; `len` counts messages still on their way."""

    def __init__(self, bus: Bus, roster: Roster, reservations: Reservations) -> None:
        self._tasks = Tasks()
        self._telling: set[asyncio.Task[None]] = set()
        self._bus = bus
        self._roster = roster
        self._reservations = reservations

    def __len__(self) -> int:
        return len(self._telling)

    def prompt_done(self, call: Call) -> None:
        """The prompt of the running attempt was computed: it queues nowhere any more."""
        if call.legs is None:
            return
        if call.legs.prefill:
            self._reservations.release(call.legs.prefill)
        call.legs.decode.computed()

    def cancel(self, call: Call) -> None:
        """The workers of the last attempt shall forget it, whatever they are doing."""
        if call.legs:
            message = Cancel(request_id=call.job.request_id, attempt=call.legs.attempt)
            self._end(call, subjects.CANCEL, message)

    def confirm(self, call: Call) -> None:
        """The answer is complete: the workers of the last attempt need to keep nothing for a resend."""
        if call.legs:
            message = Confirm(request_id=call.job.request_id, attempt=call.legs.attempt)
            self._end(call, subjects.CONFIRM, message)

    async def settle(self, seconds: float) -> None:
        """Wait until every worker was told, for `seconds` at most."""
        try:
            async with asyncio.timeout(seconds):
                while self._telling:
                    await asyncio.wait(self._telling)
        except TimeoutError:
            await self._tasks.cancel_all()

    def _end(self, call: Call, endpoint: Endpoint[Q, Ack], message: Q) -> None:
        legs, call.legs = call.legs, None
        for reservation in legs.reservations if legs else ():
            self._reservations.release(reservation)
            name = f"{endpoint.verb} {message.request_id}"
            task = self._tasks.spawn(self._tell(endpoint, reservation.beacon, message), name=name)
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(
        self,
        endpoint: Endpoint[Q, Ack],
        beacon: Beacon,
        message: Q,
    ) -> None:
        pauses = iter(_TELL_AGAIN_S)
        while True:
            try:
                await rpc.call(self._bus, endpoint, beacon.role, beacon.worker, message)
            except Unavailable as error:
                if not self._lives(beacon):
                    return
                pause = _RECONNECT_S if self._roster.deaf else next(pauses, None)
                if pause is None:
                    log.warning(
                        "worker_not_told", verb=endpoint.verb, peer=beacon.worker, error=error.message
                    )
                    return
                await asyncio.sleep(pause)
            except PacelineError:
                return  # refused: it does not know the attempt any more
            else:
                return

    def _lives(self, beacon: Beacon) -> bool:
        known = self._roster.get(beacon.role, beacon.worker)
        return known is not None and known.incarnation == beacon.incarnation

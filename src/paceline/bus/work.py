"""A piece of work from a JetStream queue: somebody else gets it unless it is acknowledged in time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from paceline.bus.interface import Bus, Delivery
from paceline.contracts.errors import Unavailable

_ACK = "$JS.ACK."
# $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<sequence>.<time>.<behind>; servers with domains put two tokens
# before the stream.
_DELIVERIES_AT, _BEHIND_AT, _TOKENS = 4, 8, 9
_CONFIRM_S = 2.0


class Work:
    """One delivery. `deliveries` counts this one too; `behind` is how many pieces nobody had got yet."""

    def __init__(self, bus: Bus, delivery: Delivery, ack_wait_s: float) -> None:
        self.subject = delivery.subject
        self.data = delivery.data
        tokens = delivery.reply.split(".")
        shift = 2 if len(tokens) > _TOKENS else 0
        self.deliveries = int(tokens[_DELIVERIES_AT + shift])
        self.behind = int(tokens[_BEHIND_AT + shift])
        self._bus = bus
        self._reply = delivery.reply
        self._ack_wait_s = ack_wait_s

    async def done(self) -> None:
        """It leaves the queue. When the server does not hear of it, it is delivered again."""
        with contextlib.suppress(Unavailable, TimeoutError):
            await self._bus.request(self._reply, b"+ACK", timeout=_CONFIRM_S)

    async def again(self, after_s: float = 0.0) -> None:
        """Deliver it again, to anyone, in so many seconds."""
        with contextlib.suppress(Unavailable):
            await self._bus.publish(self._reply, b'-NAK {"delay": %d}' % (after_s * 1e9))

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Nobody else gets it during the block, however long that takes."""
        beating = asyncio.create_task(self._beat(), name="work in progress")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait((beating,))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait_s / 3)
            with contextlib.suppress(Unavailable):
                await self._bus.publish(self._reply, b"+WPI")


async def give_back(bus: Bus, box: asyncio.Queue[Delivery]) -> None:
    """Work that came while nobody waited for it any more."""
    while not box.empty():
        delivery = box.get_nowait()
        if delivery.reply.startswith(_ACK):
            with contextlib.suppress(Unavailable):
                await bus.publish(delivery.reply, b"-NAK")

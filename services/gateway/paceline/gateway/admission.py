"""How many requests the gateway takes: so many in the mesh, so many waiting for it, and no more.

Whether there is room is asked before a body is read. A request holds a ticket from the last byte of its body to that
of its answer, and waits for its turn in the mesh once it is ready to run.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.contracts.errors import Busy

_REMEMBERED = 64
_MAX_RETRY_S = 60.0


class Ticket:
    """One request's place."""

    def __init__(self) -> None:
        self.running = False
        self._granted = asyncio.Event()

    def grant(self) -> None:
        """It is this request's turn."""
        self.running = True
        self._granted.set()

    async def wait(self) -> None:
        """Until it is granted."""
        await self._granted.wait()


class Admission:
    """First come, first served among those that are ready. For one event loop."""

    def __init__(
        self, *, max_running: int, max_waiting: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_running = max_running
        self._capacity = max_running + max_waiting
        self._clock = clock
        self._tickets: set[Ticket] = set()
        self._ready: deque[Ticket] = deque()
        self._left: deque[float] = deque(maxlen=_REMEMBERED)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._departure = asyncio.Event()

    @property
    def running(self) -> int:
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that were taken and do not run yet."""
        return len(self._tickets) - self._running

    def check_idle_place(self) -> None:
        """Raises `Busy` when a request would have to wait for its turn."""
        if self._ready or self._running >= self._max_running:
            raise Busy("Capacity temporarily exceeded, please try again.", retry_after_s=self._drain_s())

    def check(self) -> None:
        """Raises `Busy`, with the time that the queue needs to drain, when `enter` would."""
        if len(self._tickets) >= self._capacity:
            raise Busy("The server has too many requests waiting", retry_after_s=self._drain_s())

    @contextmanager
    def enter(self) -> Iterator[Ticket]:
        """A ticket for the length of the block. Raises `Busy`."""
        self.check()
        ticket = Ticket()
        self._tickets.add(ticket)
        self._idle.clear()
        try:
            yield ticket
        finally:
            self._leave(ticket)

    async def run(self, ticket: Ticket) -> None:
        """Wait until fewer than `max_running` requests run and all that were ready before had their turn."""
        self._ready.append(ticket)
        self._grant()
        await ticket.wait()

    async def spare(self) -> None:
        """Wait until at least half of the places to run are free, for work that has time. `enter` must follow at
        once."""
        while 2 * len(self._tickets) >= self._max_running:
            self._departure.clear()
            await self._departure.wait()

    async def idle(self) -> None:
        """Wait until nobody holds a ticket."""
        await self._idle.wait()

    def _leave(self, ticket: Ticket) -> None:
        self._tickets.discard(ticket)
        self._departure.set()
        if not self._tickets:
            self._idle.set()
        if ticket.running:
            self._running -= 1
            self._left.append(self._clock())
        elif ticket in self._ready:
            self._ready.remove(ticket)
        self._grant()

    def _grant(self) -> None:
        while self._ready and self._running < self._max_running:
            self._running += 1
            self._ready.popleft().grant()

    def _drain_s(self) -> float:
        """Seconds until those that wait now would run, at the pace of the last ones that finished."""
        elapsed = self._clock() - self._left[0] if self._left else 0.0
        if elapsed <= 0.0:
            return 1.0
        rate = len(self._left) / elapsed
        return min(_MAX_RETRY_S, max(1.0, self.waiting / rate))

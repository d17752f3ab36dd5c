"""How many bodies are read at once. They wait in no queue: whoever announces a body and does not send it must keep
nobody else out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from paceline.contracts.errors import Busy

# Every body of ours that does come has come by then, from all but the slowest networks.
SAFE_S = 1.0


class Uploads:
    """Places for uploads; once they are taken, the longest upload makes room for a new one. For one event loop."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._running: dict[asyncio.Timeout, float] = {}

    def __len__(self) -> int:
        """Uploads that are not finished."""
        return len(self._running)

    @asynccontextmanager
    async def place(self, seconds: float) -> AsyncIterator[None]:
        """A place for the length of the block.

        Raises `Busy` when there is none, and `TimeoutError` after `seconds` or when another upload needs the place
        of one that lasts longer than `SAFE_S`.
        """
        now = asyncio.get_running_loop().time()
        self._make_room(now)
        async with asyncio.timeout(seconds) as limit:
            self._running[limit] = now
            try:
                yield
            finally:
                self._running.pop(limit, None)

    def _make_room(self, now: float) -> None:
        if len(self._running) < self._places:
            return
        longest, since = next(iter(self._running.items()))
        if now - since <= SAFE_S:
            raise Busy("The server has too many uploads", retry_after_s=SAFE_S)
        del self._running[longest]
        longest.reschedule(now)

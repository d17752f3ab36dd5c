"""Work from a queue, for ever."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import structlog

from paceline.bus.work import Work
from paceline.contracts.errors import Unavailable

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0


async def consume(
    pull: Callable[[], Awaitable[Work | None]], make: Callable[[], Awaitable[None]]
) -> AsyncGenerator[Work, None]:
    """What `pull` gives. While the queue is out of reach it is tried less and less often, and made where it is
    missing: it may be a new server that comes back."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            work = await pull()
        except Unavailable as e:
            log.debug("queue_unavailable", error=e.message, pause_s=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            with contextlib.suppress(Unavailable):
                await make()
            continue
        pause = _FIRST_PAUSE_S
        if work is not None:
            yield work

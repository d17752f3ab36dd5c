"""Keeps a client from hiding that it left.

aiohttp learns that a client is gone by reading, and stops reading once many pipelined requests wait behind the one
that runs. The gateway would then work to the end of an answer that nobody wants.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_S = 1.0


@contextmanager
def cut_off_when_unread(transport: asyncio.Transport | None) -> Iterator[None]:
    """Close the connection soon after it stops being read, which cancels its handler. For the time between the body
    and the end of the answer, in which only pipelined requests can stop it."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if transport and not transport.is_closing() and not transport.is_reading():
            transport.abort()
        timer = loop.call_later(_LOOK_S, look)

    timer = loop.call_later(_LOOK_S, look)
    try:
        yield
    finally:
        timer.cancel()

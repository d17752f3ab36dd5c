"""Answers of several messages: a subject of one's own for as long as they come."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from paceline.bus.interface import Bus, Delivery


@dataclass(frozen=True, slots=True)
class Inbox:
    """`subject` is to be replied to; what comes waits in `box`."""

    subject: str
    box: "asyncio.Queue[Delivery]" = field(default_factory=asyncio.Queue)


@contextlib.asynccontextmanager
async def inbox(bus: Bus) -> AsyncIterator[Inbox]:
    """A new one, for the length of the block. Its subscription is its own, as a delivery of JetStream bears the subject
    that it was stored under. Raises `Unavailable`."""
    own = Inbox(f"_INBOX.{secrets.token_hex(11)}")
    subscription = await bus.subscribe(own.subject, own.box.put_nowait)
    try:
        yield own
    finally:
        await subscription.unsubscribe()

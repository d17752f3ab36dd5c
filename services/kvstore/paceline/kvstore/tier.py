"""Pages of one size: the memory, the index of what is in it, and the socket that shares it."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import structlog

from paceline.contracts.errors import Unavailable
from paceline.contracts.messages import ShmTransfer
from paceline.kvstore.settings import Settings
from paceline.kvstore.store import Store
from paceline.transport.arena import Arena
from paceline.transport.shm import ShmTransport
from paceline.worker.memory import free_memory

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tier:
    """An arena of `page_bytes` each and what belongs to it; made and closed as one."""

    page_bytes: int
    store: Store
    transport: ShmTransport
    arena: Arena | None

    @property
    def transfer(self) -> ShmTransfer:
        """How to reach the pages; names no socket while there are none, as no lease has any then."""
        return ShmTransfer(socket="", incarnation="") if self.arena is None else self.transport.params

    @property
    def empty(self) -> bool:
        """Whether nothing would be lost with it."""
        usage = self.store.usage
        return usage.free == usage.total

    async def close(self) -> None:
        await self.transport.close()
        if self.arena is not None:
            self.arena.close()


def no_tier(settings: Settings, worker: str, counters: Counter[str]) -> Tier:
    """A tier without pages, until somebody says how large a page is."""
    store = Store(np.zeros(0, np.uint64), "none", ttl_s=settings.kvstore_lease_s, counters=counters)
    return Tier(0, store, ShmTransport(None, settings.run_dir, worker, "none"), None)


async def open_tier(
    settings: Settings, worker: str, life: str, page_bytes: int, counters: Counter[str]
) -> Tier:
    """As many pages as the settings and a quarter of the free memory allow. `life` names this arena.

    Raises `Unavailable` when that is not even one.
    """
    budget = min(settings.kvstore_bytes, free_memory() // 4)
    pages = budget // page_bytes
    if not pages:
        raise Unavailable(f"{budget} bytes hold no page of {page_bytes}")
    # Nothing is touched ahead: the kernel gives memory page by page as it is first written, so that an idle store costs
    # none, and zeroing a gigabyte at once would stop the event loop for a third of a second.
    arena = Arena.create(pages, page_bytes)
    transport = ShmTransport(arena, settings.run_dir, worker, life)
    try:
        await transport.start()
    except BaseException:
        arena.close()
        raise
    store = Store(arena.tags, life, ttl_s=settings.kvstore_lease_s, counters=counters)
    log.info("store_opened", pages=pages, page_bytes=page_bytes)
    return Tier(page_bytes, store, transport, arena)

"""Pages that the node's kvstore lends for reading, and their way into a worker's prefix cache.

A page counts as cached only after its digest was compared, so that a wrong byte in the store is a miss.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog
import xxhash

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import IntegrityError
from paceline.contracts.hashing import page_key
from paceline.contracts.messages import Beacon, Lease, Lookup, PageRef, Release
from paceline.engine.scheduler import Scheduler
from paceline.runtime.context import Context
from paceline.transport.interface import RemotePages
from paceline.worker.host import EngineHost

log = structlog.get_logger(__name__)

LOOKUP_S = 0.5


def digest(page: "memoryview | bytes") -> bytes:
    """xxh3-128 of a page's bytes: against accidents, not against an attacker."""
    return xxhash.xxh3_128_digest(page)


@dataclass(slots=True)
class Loan:
    """`lease` names the pages of `keys` (see `hashing.group_key`), in order. `damaged` are those of other bytes than
    their digests say."""

    keys: list[bytes]
    lease: Lease
    damaged: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def borrow(
    context: Context, host: EngineHost, store: Beacon, keys: list[bytes], *, sparse: bool = False
) -> AsyncIterator[Loan]:
    """The pages of the longest stored prefix of `keys`, or, `sparse`, of all of them that are stored."""
    stored = [page_key(key, host.profile.id) for key in keys]
    lookup = Lookup(worker=context.identity.worker, keys=stored, sparse=sparse)
    lease = await rpc.call(context.bus, subjects.LOOKUP, "kvstore", store.worker, lookup, timeout=LOOKUP_S)
    found = lease.found if sparse else range(len(lease.pages))
    loan = Loan([keys[i] for i in found], lease)
    try:
        yield loan
    finally:
        if lease.pages:
            damaged = [page_key(key, host.profile.id) for key in loan.damaged]
            release = Release(lease_id=lease.lease_id, damaged=damaged)
            await rpc.call(context.bus, subjects.RELEASE, "kvstore", store.worker, release)


async def copy_in(host: EngineHost, loan: Loan, wanted: Collection[bytes]) -> bool:
    """Copy those pages of a loan that are `wanted` into the prefix cache, up to the first damaged one; whether there
    was none. Raises `OutOfPagesError` and what the transport raises."""
    chosen = [
        (key, ref, expected)
        for key, ref, expected in zip(loan.keys, loan.lease.pages, loan.lease.digests, strict=True)
        if key in wanted
    ]
    if not chosen:
        return True
    remote = await host.transport.connect(loan.lease.transfer)
    pages = await host.thread.call(lambda s: s.pool.allocate(len(chosen)))
    keys = [key for key, _, _ in chosen]
    good = 0
    try:
        good = await asyncio.to_thread(_read, host, remote, [(r, d) for _, r, d in chosen], pages)
    finally:
        await host.thread.call(lambda s: _keep(host, s, pages, keys[:good]))
    loan.damaged += keys[good : good + 1]
    return good == len(chosen)


def _read(host: EngineHost, remote: RemotePages, lent: list[tuple[PageRef, bytes]], pages: list[int]) -> int:
    """How many of the `lent` (page, digest) were what their digests say."""
    for i, (ref, expected) in enumerate(lent):
        own = host.arena.pages[pages[i]]
        try:
            remote.read([ref], [own])
        except IntegrityError:
            return i
        if digest(own.data) != expected:
            log.warning("stored_page_damaged", page=ref.page)
            return i
    return len(lent)


def _keep(host: EngineHost, scheduler: Scheduler, pages: list[int], keys: list[bytes]) -> None:
    """Offer the first of `pages` under `keys`, and let go of all."""
    host.import_pages(pages[: len(keys)])
    for page, key in zip(pages, keys, strict=False):
        scheduler.pool.publish(page, key)
    scheduler.pool.release(pages)

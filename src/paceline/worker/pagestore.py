"""A worker's access to the node's kvstore: fetch the prefix that a prompt lacks, save the pages that it made.

Both only ever help: when the store is away, slow or full, the worker computes. A fetched page counts as cached only
after its digest was compared, so that a wrong byte in the store is a miss.
"""

import asyncio

import structlog
import xxhash

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import IntegrityError, PacelineError
from paceline.contracts.hashing import PAGE_TOKENS, page_key
from paceline.contracts.messages import Beacon, Lease, Lookup, Publish, Release, Reserve, Reserved
from paceline.engine.pages import OutOfPagesError
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.runtime.context import Context
from paceline.transport.interface import RemotePages
from paceline.worker.host import EngineHost

log = structlog.get_logger(__name__)

LOOKUP_S = 0.5
MAX_UNSAVED = 64
"""Prompts whose pages wait to be saved; more are not saved at all."""


def digest(page: "memoryview | bytes") -> bytes:
    """xxh3-128 of a page's bytes: against accidents, not against an attacker."""
    return xxhash.xxh3_128_digest(page)


class PageStore:
    """Talks to the kvstore of this host, whichever life of it is there."""

    def __init__(self, context: Context, host: EngineHost) -> None:
        self._context = context
        self._host = host
        self._unsaved: asyncio.Queue[list[bytes]] = asyncio.Queue(MAX_UNSAVED)
        self._saving = 0
        self.damaged = 0

    def start(self) -> None:
        self._context.tasks.spawn(self._save_all(), name="pagestore")

    @property
    def unsaved(self) -> int:
        """Prompts whose pages are not saved yet."""
        return self._unsaved.qsize() + self._saving

    async def fetch(self, sequence: Sequence) -> None:
        """Bring the stored pages behind the pool's own prefix of `sequence`, before it is given to the scheduler."""
        store = self._store()
        if store is None:
            return
        sequence.hash_full_pages()
        hashes = sequence.hashes[: (len(sequence.tokens) - 1) // PAGE_TOKENS]
        have = await self._host.thread.call(lambda s: len(s.pool.lookup(hashes)))
        if have == len(hashes):
            return
        try:
            sequence.imported = PAGE_TOKENS * await self._import(store, hashes[have:])
        except (PacelineError, OutOfPagesError) as error:
            log.info("store_fetch_failed", request_id=sequence.request_id, error=str(error))
        except Exception:
            # Then the prompt is computed, as without a store.
            log.exception("store_fetch_crashed", request_id=sequence.request_id)

    def save(self, hashes: list[bytes]) -> None:
        """Store the pages of these content hashes in the background, as far as they are here and not there. Drops them
        when too much waits already."""
        if hashes and self._store() is not None and not self._unsaved.full():
            self._unsaved.put_nowait(hashes)

    def _store(self) -> Beacon | None:
        stores = self._context.roster.alive("kvstore")
        return next((s for s in stores if s.host == self._context.identity.host and s.state == "ready"), None)

    async def _import(self, store: Beacon, hashes: list[bytes]) -> int:
        """The number of pages that are in the prefix cache now."""
        keys = [page_key(h, self._host.profile_id) for h in hashes]
        lookup = Lookup(worker=self._context.identity.worker, keys=keys)
        lease = await rpc.call(
            self._context.bus, subjects.LOOKUP, "kvstore", store.worker, lookup, timeout=LOOKUP_S
        )
        damaged: list[bytes] = []
        try:
            good = await self._copy_in(lease, hashes) if lease.pages else 0
            damaged = keys[good : good + 1] if good < len(lease.pages) else []
        finally:
            if lease.pages:
                release = Release(lease_id=lease.lease_id, damaged=damaged)
                await rpc.call(self._context.bus, subjects.RELEASE, "kvstore", store.worker, release)
        return good

    async def _copy_in(self, lease: Lease, hashes: list[bytes]) -> int:
        """Copy the leased pages into own ones; how many were what their digests say."""
        remote = await self._host.transport.connect(lease.transfer)
        pages = await self._host.thread.call(lambda s: s.pool.allocate(len(lease.pages)))
        good = 0
        try:
            good = await asyncio.to_thread(self._read, remote, lease, pages)
        finally:
            await self._host.thread.call(lambda s: _keep(s, pages, hashes[:good]))
        self.damaged += good < len(lease.pages)
        return good

    def _read(self, remote: RemotePages, lease: Lease, pages: list[int]) -> int:
        for i, (ref, expected) in enumerate(zip(lease.pages, lease.digests, strict=True)):
            own = self._host.arena.pages[pages[i]]
            try:
                remote.read([ref], [own])
            except IntegrityError:
                return i
            if digest(own.data) != expected:
                log.warning("stored_page_damaged", page=ref.page)
                return i
        return len(lease.pages)

    async def _save_all(self) -> None:
        while True:
            hashes = await self._unsaved.get()
            self._saving = 1
            try:
                await self._save(hashes)
            except PacelineError as error:
                log.info("store_save_failed", pages=len(hashes), error=str(error))
            except Exception:
                # One prompt less is stored; the next ones may well be.
                log.exception("store_save_crashed", pages=len(hashes))
            finally:
                self._saving = 0

    async def _save(self, hashes: list[bytes]) -> None:
        store = self._store()
        if store is None:
            return
        held = await self._host.thread.call(lambda s: _hold(s, hashes))
        try:
            await self._put(store, held)
        finally:
            await self._host.thread.call(lambda s: s.pool.release(list(held.values())))

    async def _put(self, store: Beacon, pages: dict[bytes, int]) -> None:
        """Write those of `pages` (content hash -> own page) that the store does not have."""
        by_key = {page_key(content_hash, self._host.profile_id): page for content_hash, page in pages.items()}
        if not by_key:
            return
        bus, worker = self._context.bus, self._context.identity.worker
        reserve = Reserve(worker=worker, keys=list(by_key), page_bytes=self._host.page_bytes)
        room = await rpc.call(bus, subjects.RESERVE, "kvstore", store.worker, reserve)
        if not room.keys:
            return
        try:
            remote = await self._host.transport.connect(room.transfer)
            digests = await asyncio.to_thread(self._write, remote, room, [by_key[key] for key in room.keys])
        except PacelineError:
            release = Release(lease_id=room.lease_id)
            await rpc.call(bus, subjects.RELEASE, "kvstore", store.worker, release)
            raise
        publish = Publish(lease_id=room.lease_id, digests=digests)
        await rpc.call(bus, subjects.PUBLISH, "kvstore", store.worker, publish)

    def _write(self, remote: RemotePages, room: Reserved, pages: list[int]) -> list[bytes]:
        own = [self._host.arena.pages[page] for page in pages]
        remote.write(room.pages, own)
        return [digest(page.data) for page in own]


def _hold(scheduler: Scheduler, hashes: list[bytes]) -> dict[bytes, int]:
    """Keep the pages of these hashes that are still here from being evicted."""
    pages = dict(zip(hashes, scheduler.pool.lookup(hashes), strict=False))
    scheduler.pool.acquire(pages.values())
    return pages


def _keep(scheduler: Scheduler, pages: list[int], hashes: list[bytes]) -> None:
    """Offer the first of `pages` under `hashes`, and let go of all."""
    for page, content_hash in zip(pages, hashes, strict=False):
        scheduler.pool.publish(page, content_hash)
    scheduler.pool.release(pages)

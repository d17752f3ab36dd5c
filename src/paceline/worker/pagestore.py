"""A worker's access to the node's kvstore: fetch the prefix that a prompt lacks, save the pages that it made.

Both only ever help: when the store is away, slow or full, the worker computes. What is saved of a prompt is what the
first row behind its full pages sees: of the page groups without span all pages, of those with one the last few.
"""

import asyncio
from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass

import structlog

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import PacelineError
from paceline.contracts.hashing import PAGE_TOKENS, group_key, page_key
from paceline.contracts.messages import Beacon, Publish, Release, Reserve, Reserved
from paceline.engine.holdings import places_behind
from paceline.engine.layout import PageGroup
from paceline.engine.pages import OutOfPagesError
from paceline.engine.prefixes import longest_prefix
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.runtime.context import Context
from paceline.transport.interface import RemotePages
from paceline.worker.host import EngineHost
from paceline.worker.loans import Loan, borrow, copy_in, digest

log = structlog.get_logger(__name__)

MAX_UNSAVED = 64
"""Prompts whose pages wait to be saved; more are not saved at all."""

MAX_SPARSE = 4096
"""Keys of one lookup in the page groups with a span, those of the longest prefixes: what a message holds."""


@dataclass(frozen=True, slots=True)
class _Local:
    """What the pool has of a prompt: pages that can be reused, and pages that the groups without span have at least."""

    reusable: int
    lasting: int


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
        if store is None or sequence.scores:
            return
        sequence.hash_full_pages()
        hashes = sequence.hashes[: (len(sequence.tokens) - 1) // PAGE_TOKENS]
        local = await self._host.thread.call(lambda s: _look(s, hashes))
        if local.reusable == len(hashes):
            return
        try:
            if await self._import(store, hashes, local):
                now = await self._host.thread.call(lambda s: s.allocator.reusable(hashes))
                sequence.imported = PAGE_TOKENS * max(0, now - local.reusable)
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
        """The ready store of this host, unless its pages are those of others."""
        if self._outsized():
            return None
        stores = self._context.roster.alive("kvstore")
        return next((s for s in stores if s.host == self._context.identity.host and s.state == "ready"), None)

    def _outsized(self) -> bool:
        """Whether this is a decode worker beside prefill workers with pages of another size. A store has one size,
        whoever comes first, and prefill workers run the long prompts."""
        own = self._context.identity
        return own.role == "decode" and any(
            p.host == own.host and p.model is not None and p.model.page_bytes != self._host.page_bytes
            for p in self._context.roster.alive("prefill")
        )

    async def _import(self, store: Beacon, hashes: list[bytes], local: _Local) -> bool:
        """Whether pages of a longer prefix than the pool's own were copied."""
        groups = self._host.groups
        full = [g for g, group in enumerate(groups) if group.span is None]
        spans = [g for g, group in enumerate(groups) if group.span is not None]
        keys = [group_key(h, g) for h in hashes[local.lasting :] for g in full]
        async with borrow(self._context, self._host, store, keys) as whole:
            most = local.lasting + len(whole.keys) // len(full) if full else len(hashes)
            if most <= local.reusable:
                return False
            windows = [group_key(h, g) for h in hashes[:most] for g in spans]
            if not windows:
                await self._copy_in(whole, set(keys))
                return True
            absent = await self._host.thread.call(lambda s: [k for k in windows if s.pool.find(k) is None])
            async with borrow(self._context, self._host, store, absent[-MAX_SPARSE:], sparse=True) as parts:
                missing = set(absent).difference(parts.keys)
                pages = longest_prefix(groups, most, lambda g, i: group_key(hashes[i], g) not in missing)
                if pages <= local.reusable:
                    return False
                wanted = set(_keys_behind(groups, hashes[:pages]))
                await self._copy_in(whole, wanted)
                await self._copy_in(parts, wanted)
        return True

    async def _copy_in(self, loan: Loan, wanted: Collection[bytes]) -> None:
        self.damaged += not await copy_in(self._host, loan, wanted)

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
        """Write those of `pages` (group key -> own page) that the store does not have."""
        by_key = {page_key(key, self._host.profile.id): page for key, page in pages.items()}
        if not by_key:
            return
        bus, worker = self._context.bus, self._context.identity.worker
        reserve = Reserve(worker=worker, keys=list(by_key), page_bytes=self._host.page_bytes)
        room = await rpc.call(bus, subjects.RESERVE, "kvstore", store.worker, reserve)
        if not room.keys:
            return
        try:
            remote = await self._host.transport.connect(room.transfer)
            own = [by_key[key] for key in room.keys]
            await self._host.export_pages(own)
            digests = await asyncio.to_thread(self._write, remote, room, own)
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


def _look(scheduler: Scheduler, hashes: list[bytes]) -> _Local:
    full = [g for g, group in enumerate(scheduler.allocator.groups) if group.span is None]
    lasting = 0
    while lasting < len(hashes) and all(
        scheduler.pool.find(group_key(hashes[lasting], g)) is not None for g in full
    ):
        lasting += 1
    return _Local(scheduler.allocator.reusable(hashes), lasting)


def _hold(scheduler: Scheduler, hashes: list[bytes]) -> dict[bytes, int]:
    """Keep the pages of the longest prefix that is still here from being evicted: group key -> page."""
    kept = hashes[: scheduler.allocator.reusable(hashes)]
    keys = _keys_behind(scheduler.allocator.groups, kept)
    pages = dict(zip(keys, scheduler.pool.lookup(keys), strict=True))
    scheduler.pool.acquire(pages.values())
    return pages


def _keys_behind(groups: Items[PageGroup], hashes: list[bytes]) -> list[bytes]:
    """The group keys of the pages that the first row behind these full pages sees."""
    places = places_behind(groups, 0, len(hashes) * PAGE_TOKENS)
    return [group_key(hashes[i], g) for g, i in places]

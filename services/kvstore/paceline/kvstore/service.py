"""The node's store of KV pages in RAM: the prefix cache that outlives a worker.

Workers copy pages in and out of its arena themselves; messages carry keys, page numbers, tags and digests
only.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable

import structlog

from paceline.contracts import messages as m
from paceline.contracts import subjects
from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.kvstore.settings import Settings
from paceline.kvstore.store import WriteLease
from paceline.kvstore.tier import no_tier, open_tier
from paceline.runtime.context import Context

log = structlog.get_logger(__name__)


class KvStoreService:
    """Answers lookups and reservations, and ends the leases of those who do not."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._counters: Counter[str] = Counter()
        self._tier = no_tier(settings, context.identity.worker, self._counters)
        self._arenas = 0
        self._opening = asyncio.Lock()
        self._draining = False
        self._lease_ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        context.api.serve(subjects.LOOKUP, self.lookup)
        context.api.serve(subjects.RESERVE, self.reserve)
        context.api.serve(subjects.PUBLISH, self.publish)
        context.api.serve(subjects.RELEASE, self.release)
        context.roster.on_lost(self._worker_lost)

    async def start(self) -> None:
        """Nothing to do before the first reservation, which says how large a page is."""

    def load(self) -> m.Load:
        usage = self._tier.store.usage
        return m.Load(
            pages_used=usage.pinned + usage.reserved + usage.quarantined,
            pages_cached=usage.stored,
            pages_total=usage.total,
            leases=self._tier.store.leases,
            tasks=len(self._context.tasks),
            counters=dict(self._counters),
        )

    def model(self) -> m.ModelInfo | None:
        return None

    async def drain(self) -> None:
        """Grant no more leases, and wait for the end of those that there are."""
        self._draining = True
        while self._tier.store.leases:
            self._lease_ended.clear()
            await self._lease_ended.wait()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tier.close()

    async def lookup(self, message: m.Lookup) -> m.Lease:
        """Pin what is stored of the keys. A lease without pages needs no release."""
        self._check_open()
        lease = self._tier.store.lookup(message.worker, message.keys, self._now(), sparse=message.sparse)
        self._leases_changed()
        index = {key: i for i, key in enumerate(message.keys)} if message.sparse else {}
        return m.Lease(
            lease_id=lease.lease_id,
            pages=[page.ref for page in lease.pages],
            digests=[page.digest for page in lease.pages],
            transfer=self._tier.transfer,
            ttl_s=self._settings.kvstore_lease_s,
            found=[index[page.key] for page in lease.pages] if message.sparse else [],
        )

    async def reserve(self, message: m.Reserve) -> m.Reserved:
        """Make room. Raises `Unavailable` for pages of another size than those that are stored."""
        self._check_open()
        async with self._opening:
            if message.page_bytes != self._tier.page_bytes:
                await self._reopen(message.page_bytes)
        lease = self._tier.store.reserve(message.worker, message.keys, self._now())
        self._leases_changed()
        return m.Reserved(
            lease_id=lease.lease_id,
            keys=[page.key for page in lease.pages],
            pages=[page.ref for page in lease.pages],
            transfer=self._tier.transfer,
        )

    async def publish(self, message: m.Publish) -> m.Ack:
        """Make written pages visible. Raises `WorkerLost` when the lease has ended."""
        self._tier.store.publish(message.lease_id, message.digests)
        self._leases_changed()
        return m.Ack()

    async def release(self, message: m.Release) -> m.Ack:
        """End a lease, also one that has ended."""
        if message.damaged:
            log.warning("pages_damaged", lease_id=message.lease_id, pages=len(message.damaged))
        self._tier.store.release(message.lease_id, message.damaged)
        self._leases_changed()
        return m.Ack()

    def _check_open(self) -> None:
        if self._draining:
            raise Unavailable("the store is leaving")

    async def _reopen(self, page_bytes: int) -> None:
        """One size of pages at a time: another arena takes the place of one that holds nothing, or nothing of use."""
        if page_bytes < 1:
            raise InvalidRequest(f"a page of {page_bytes} bytes", param="page_bytes")
        if not self._tier.empty and not self._is_for_prefill(page_bytes):
            raise Unavailable(f"this store holds pages of {self._tier.page_bytes} bytes, not {page_bytes}")
        own = self._context.identity
        await self._tier.close()
        self._tier = no_tier(self._settings, own.worker, self._counters)
        self._arenas += 1
        life = f"{own.incarnation}-{self._arenas}"
        self._tier = await open_tier(self._settings, own.worker, life, page_bytes, self._counters)
        self._tier.transport.on_peer_lost(self._peer_lost)

    def _is_for_prefill(self, page_bytes: int) -> bool:
        """Whether prefill workers have pages of this size and not of the present one.

        A decode worker that keeps KV in another form leaves the store to them, but only while it knows of any.
        """
        host = self._context.identity.host
        workers = [b for b in self._context.roster.alive("prefill") if b.host == host]
        sizes = {b.model.page_bytes for b in workers if b.model is not None}
        return page_bytes in sizes and self._tier.page_bytes not in sizes

    def _worker_lost(self, beacon: m.Beacon) -> None:
        # Silent on the bus is not dead: it may still be copying into its pages.
        self._reclaim_all(self._tier.store.doubt_worker(beacon.worker))
        self._leases_changed()

    def _peer_lost(self, worker: str) -> None:
        self._tier.store.end_worker(worker)
        self._leases_changed()

    def _expire(self) -> None:
        self._timer = None
        self._reclaim_all(self._tier.store.expire(self._now()))
        self._leases_changed()

    def _reclaim_all(self, leases: Iterable[WriteLease]) -> None:
        for lease in leases:
            log.warning(
                "lease_quarantined", lease_id=lease.lease_id, worker=lease.worker, pages=len(lease.pages)
            )
            self._context.tasks.spawn(self._reclaim(lease), name="reclaim lease")

    async def _reclaim(self, lease: WriteLease) -> None:
        """Free the pages of a writer that did not say when it was done, once it cannot be writing any more."""
        await self._tier.transport.recall(lease.worker)
        self._tier.store.release(lease.lease_id)
        self._leases_changed()

    def _leases_changed(self) -> None:
        self._lease_ended.set()
        deadline = self._tier.store.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

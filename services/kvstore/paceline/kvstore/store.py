"""Which page holds what, who reads or writes it, and what goes first. Pure: no clock, no bytes, no bus.

A page is always in exactly one of four states:

    free         nobody's
    reserved     a write lease holds it; it has no key yet
    quarantined  as reserved, but the lease has run out: its writer may still be writing, so nobody else may
    have it stored       it holds the bytes of a key; pinned while a read lease names it, else evictable,
    oldest first

Its tag changes whenever it is allocated and whenever it is freed, never to a value of before, so that a
reader or a writer that comes late notices.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest, WorkerLost
from paceline.contracts.messages import PageRef

Tags: TypeAlias = npt.NDArray[np.uint64]


@dataclass(eq=False, slots=True)
class Page:
    """An allocated page. `digest` is empty until it is stored, `pins` counts the read leases that name it."""

    key: bytes
    ref: PageRef
    digest: bytes = b""
    pins: int = 0


@dataclass(eq=False, frozen=True, slots=True)
class ReadLease:
    """`pages` stay what they are until the lease ends."""

    lease_id: str
    worker: str
    pages: list[Page]


@dataclass(eq=False, slots=True)
class WriteLease:
    """`pages` are the worker's to write."""

    lease_id: str
    worker: str
    pages: list[Page]
    quarantined: bool = False


Lease: TypeAlias = ReadLease | WriteLease


@dataclass(frozen=True, slots=True)
class Usage:
    """Pages by state; `pinned` are part of `stored`."""

    total: int
    free: int
    stored: int
    pinned: int
    reserved: int
    quarantined: int


class Store:
    """The index of one arena. Times are in seconds of any steady clock."""

    def __init__(self, tags: Tags, life: str, *, ttl_s: float, counters: Counter[str] | None = None) -> None:
        """Owns every page of `tags`, uint64 [pages], and counts into `counters`. `life` prefixes lease ids,
        so that those of an earlier store mean nothing to this one.
        """
        self.counters = Counter[str]() if counters is None else counters
        self.counters.update(dict.fromkeys(("hits", "misses", "stored", "evicted", "damaged"), 0))
        self._tags = tags
        self._ttl_s = ttl_s
        self._lease_ids = (f"{life}-{n}" for n in count())
        self._next_tag = count(1)
        # A stack, so that memory which was touched before is used first.
        self._free = list(reversed(range(len(tags))))
        self._index: dict[bytes, Page] = {}
        self._evictable: OrderedDict[bytes, Page] = OrderedDict()
        self._writing: set[bytes] = set()
        self._leases: dict[str, Lease] = {}
        # A heap: no long lease at the head of a queue hides others that ran out.
        self._deadlines: list[tuple[float, str]] = []

    def lookup(self, worker: str, keys: Sequence[bytes], now: float, *, sparse: bool = False) -> ReadLease:
        """Pin the longest prefix of `keys` that is stored, or with `sparse` all that are. A lease without pages
        ends by itself.
        """
        pages = []
        for key in keys:
            page = self._index.get(key)
            if page is None and sparse:
                continue
            if page is None:
                break
            self._evictable.pop(key, None)
            page.pins += 1
            pages.append(page)
        self.counters["hits"] += len(pages)
        if not sparse:  # Whoever asks so does not expect to find them all.
            self.counters["misses"] += len(keys) - len(pages)
        lease = ReadLease(next(self._lease_ids), worker, pages)
        self._grant(lease, now)
        return lease

    def reserve(self, worker: str, keys: Sequence[bytes], now: float) -> WriteLease:
        """Room for those of `keys` that are neither stored nor being written, as far as evicting the least
        recently used pages makes some; never at the cost of another of `keys`. A lease without pages ends
        by itself.
        """
        asked = dict.fromkeys(keys)
        for key in reversed(asked):
            if key in self._evictable:
                self._evictable.move_to_end(key)
        pages = []
        for key in asked:
            if key in self._index or key in self._writing:
                continue
            if not self._free and not self._evict_other_than(asked):
                break
            pages.append(Page(key, self._allocate()))
        self._writing.update(page.key for page in pages)
        lease = WriteLease(next(self._lease_ids), worker, pages)
        self._grant(lease, now)
        return lease

    def publish(self, lease_id: str, digests: Sequence[bytes]) -> None:
        """The pages of a write lease, quarantined or not, hold what their keys say: show them to lookups. A
        key that somebody else stored meanwhile keeps that page.

        Raises `WorkerLost` for a lease that is not there, `InvalidRequest` for one that is not of that kind
        or size.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            raise WorkerLost(f"the store knows no lease {lease_id}")
        if not isinstance(lease, WriteLease) or len(digests) != len(lease.pages):
            raise InvalidRequest(f"lease {lease_id} does not take {len(digests)} digests")
        del self._leases[lease_id]
        self._give_up_keys(lease)
        # The first page of a prefix is the last to go, because those behind it are useless without it.
        for page, digest in reversed(list(zip(lease.pages, digests, strict=True))):
            if page.key in self._index:
                self._free_page(page)
                continue
            page.digest = digest
            self._index[page.key] = self._evictable[page.key] = page
            self.counters["stored"] += 1

    def release(self, lease_id: str, damaged: Iterable[bytes] = ()) -> None:
        """End a lease. Of a read lease, the pages of the `damaged` keys are dropped; the pages of a write
        lease are free at once, because its worker says that it writes no more. Unknown leases have ended
        already.
        """
        lease = self._leases.get(lease_id)
        if isinstance(lease, ReadLease):
            own = {page.key: page for page in lease.pages}
            for key in damaged:
                # By identity: the key may have been dropped and stored afresh since this lease began.
                if key in own and self._index.get(key) is own[key]:
                    del self._index[key]
                    self.counters["damaged"] += 1
        if lease is not None:
            self._end(lease)

    def end_worker(self, worker: str) -> None:
        """No byte of `worker` can land any more: end its leases, quarantined ones too."""
        for lease in self._of(worker):
            self._end(lease)

    def doubt_worker(self, worker: str) -> list[WriteLease]:
        """`worker` is silent, but may still be writing: end its read leases, quarantine its write leases
        and return these.
        """
        return self._doubt(self._of(worker))

    def expire(self, now: float) -> list[WriteLease]:
        """End the read leases that ran out by `now`, quarantine such write leases and return these."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            lease = self._leases.get(heapq.heappop(self._deadlines)[1])
            if lease is not None:
                due.append(lease)
        return self._doubt(due)

    def next_deadline(self) -> float | None:
        """When the first lease runs out, so when to call `expire`."""
        while self._deadlines and self._deadlines[0][1] not in self._leases:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def leases(self) -> int:
        """Leases that have not ended, quarantined ones included."""
        return len(self._leases)

    @property
    def usage(self) -> Usage:
        """Counted anew, so that a leak shows as a sum that does not add up."""
        writes = [lease for lease in self._leases.values() if isinstance(lease, WriteLease)]
        pinned = {
            p.ref.page for lease in self._leases.values() if isinstance(lease, ReadLease) for p in lease.pages
        }
        return Usage(
            total=len(self._tags),
            free=len(self._free),
            stored=len(self._evictable) + len(pinned),
            pinned=len(pinned),
            reserved=sum(len(lease.pages) for lease in writes if not lease.quarantined),
            quarantined=sum(len(lease.pages) for lease in writes if lease.quarantined),
        )

    def _grant(self, lease: Lease, now: float) -> None:
        if lease.pages:
            self._leases[lease.lease_id] = lease
            heapq.heappush(self._deadlines, (now + self._ttl_s, lease.lease_id))

    def _of(self, worker: str) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.worker == worker]

    def _doubt(self, leases: list[Lease]) -> list[WriteLease]:
        """End what is harmless; quarantine the rest, without what is in quarantine already."""
        doubtful = []
        for lease in leases:
            if isinstance(lease, ReadLease):
                self._end(lease)
            elif not lease.quarantined:
                self._give_up_keys(lease)
                lease.quarantined = True
                doubtful.append(lease)
        return doubtful

    def _end(self, lease: Lease) -> None:
        """Take the lease away; its pages go back to where they belong, the deepest of a prefix first."""
        del self._leases[lease.lease_id]
        if isinstance(lease, WriteLease):
            self._give_up_keys(lease)
            for page in reversed(lease.pages):
                self._free_page(page)
            return
        for page in reversed(lease.pages):
            page.pins -= 1
            if page.pins:
                continue
            if self._index.get(page.key) is page:
                self._evictable[page.key] = page
            else:
                self._free_page(page)

    def _give_up_keys(self, lease: WriteLease) -> None:
        # After quarantine began, another lease may be writing the same keys.
        if not lease.quarantined:
            self._writing.difference_update(page.key for page in lease.pages)

    def _evict_other_than(self, keys: Container[bytes]) -> bool:
        """Free the least recently used page, unless that is one of `keys`, which are the most recently
        used.
        """
        oldest = next(iter(self._evictable), None)
        if oldest is None or oldest in keys:
            return False
        page = self._evictable.pop(oldest)
        del self._index[oldest]
        self._free_page(page)
        self.counters["evicted"] += 1
        return True

    def _allocate(self) -> PageRef:
        page = self._free.pop()
        return PageRef(page, self._change_tag(page))

    def _free_page(self, page: Page) -> None:
        self._change_tag(page.ref.page)
        self._free.append(page.ref.page)

    def _change_tag(self, page: int) -> int:
        tag = next(self._next_tag)
        self._tags[page] = tag
        return tag

"""Physical pages: who holds which, which hold a cached prefix, and the tags that prove it.

A page is in exactly one of these states:

    free         nobody's; its bytes mean nothing
    held         referenced by one or more sequences (a shared prefix has several holders)
    cached       no holder, but its key is known: the prefix cache; the least recently used is evicted first
    quarantined  given back while another process may still write to it; becomes free when that is over

`PagePool` is pure bookkeeping for one thread: it never reads or writes page bytes.
"""

import secrets
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InternalError

Tags = npt.NDArray[np.uint64]

NO_TAG = 0
"""Borne by no page of `PageTags`."""


class TagTracker(Protocol):
    """Gives pages a new identity each time they change hands, and finds references to an old one.

    `changes` is another number after every change: who knows that it is the same need not look again.
    """

    changes: int

    def change(self, page: int) -> None:
        """The page was allocated or freed: every tag recorded before is stale from now on."""

    def tag(self, page: int) -> int: ...

    def stale(self, pages: npt.NDArray[np.integer], tags: Tags) -> npt.NDArray[np.int64]:
        """Flat indices at which `pages` no longer bear `tags`, which are `NO_TAG` where no page is meant."""


class PageTags:
    """Tags kept in `tags` uint64 [pages], shared with whoever maps the arena.

    A tag is 16 random bits for this life of the worker, then a 48-bit counter, so that a reference from an earlier
    life does not match by chance and none repeats within one.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self.changes = 0
        self._next = (secrets.randbits(16) << 48) + 1
        for page in range(len(tags)):
            self.change(page)

    def change(self, page: int) -> None:
        self._tags[page] = self._next
        self._next += 1
        self.changes += 1

    def tag(self, page: int) -> int:
        return int(self._tags[page])

    def stale(self, pages: npt.NDArray[np.integer], tags: Tags) -> npt.NDArray[np.int64]:
        return np.flatnonzero((self._tags[pages] != tags) & (tags != NO_TAG))


class NoTags:
    """The tracker of PACELINE_KV_INTEGRITY=off: every page bears tag 0 for ever."""

    changes = 0

    def change(self, page: int) -> None: ...

    def tag(self, page: int) -> int:
        return 0

    def stale(self, pages: npt.NDArray[np.integer], tags: Tags) -> npt.NDArray[np.int64]:
        return np.empty(0, dtype=np.int64)


class OutOfPagesError(Exception):
    """Fewer pages can be had than were asked for; nothing was allocated."""


class PagePool:
    """The pages of one worker, of all page groups. Keys are `hashing.group_key`s: one pool holds one KV profile."""

    def __init__(self, pages: int, tags: TagTracker) -> None:
        self.total = pages
        self.tags = tags
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._quarantined: set[int] = set()

    @property
    def available(self) -> int:
        """Pages that `allocate` can give, evicting cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    @property
    def used(self) -> int:
        """Pages that are held or quarantined: zero when idle."""
        return self.total - self.available

    def allocate(self, count: int) -> list[int]:
        """`count` pages with one holder, no key and new tags. Raises `OutOfPagesError`."""
        if count > self.available:
            raise OutOfPagesError
        pages = []
        for _ in range(count):
            page = self._free.pop() if self._free else self._evict()
            self._holders[page] = 1
            self.tags.change(page)
            pages.append(page)
        return pages

    def find(self, key: bytes) -> int | None:
        """The page of `key`, held or cached, if it is here."""
        return self._page_of.get(key)

    def exclusive(self, pages: Iterable[int]) -> int:
        """How many of `pages` have a single holder."""
        return sum(self._holders[page] == 1 for page in pages)

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """Pages of the longest prefix of `keys` that is here, held or cached. Changes nothing."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def acquire(self, pages: Iterable[int]) -> None:
        """Add a holder to pages that `lookup` found."""
        for page in pages:
            self._cached.pop(page, None)
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drop one holder of each page. Pages without holder stay cached when they have a key, else become free.

        Pages are given from the start of a sequence to its end, and the end is the first to be evicted: a prefix is of
        use without its continuation, but not the other way round.
        """
        for page in reversed(pages):
            if self._drop_holder(page):
                continue
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._set_free(page)

    def quarantine(self, pages: Iterable[int]) -> None:
        """Like `release` for pages with a single holder and no key that a peer may still write to."""
        for page in pages:
            if page in self._key_of or self._drop_holder(page):
                raise InternalError(f"page {page} is shared and cannot be quarantined")
            self.tags.change(page)
            self._quarantined.add(page)

    def end_quarantine(self, pages: Iterable[int]) -> None:
        """No byte can land in these pages any more."""
        for page in pages:
            self._quarantined.remove(page)
            self._set_free(page)

    def publish(self, page: int, key: bytes) -> None:
        """Offer a full, held page to later sequences. The first page of a key wins; others stay private."""
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key] = page
            self._key_of[page] = key

    def check(self) -> None:
        """Raise `InternalError` unless every page is in exactly one state. Cheap enough to run whenever idle."""
        held = sum(1 for n in self._holders if n)
        states = len(self._free) + len(self._cached) + len(self._quarantined) + held
        if states != self.total or len(self._key_of) != len(self._page_of):
            raise InternalError(
                f"{self.total} pages, but {len(self._free)} free, {len(self._cached)} cached, "
                f"{len(self._quarantined)} quarantined, {held} held"
            )

    def _drop_holder(self, page: int) -> bool:
        """Whether somebody still holds the page."""
        if self._holders[page] == 0:
            raise InternalError(f"page {page} is released twice")
        self._holders[page] -= 1
        return self._holders[page] > 0

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        del self._page_of[self._key_of.pop(page)]
        return page

    def _set_free(self, page: int) -> None:
        self.tags.change(page)
        self._free.append(page)

"""Which pages a sequence takes, keeps and gives back. One pool serves all page groups (Jenga, arXiv 2503.18292).

A group without span has pages for a whole prompt from its admission on. A group with one takes pages as chunks run and
gives back those that no later row sees, so that a long prompt holds a few of them at a time. They are promised at
admission: an admitted prompt never waits for another one, and only decoding sequences compete for what is left.

A promise is good because the pool always has what all promises together still lack. A page that somebody else holds too
counts as lacking, since giving it back would free nothing. Copies from and to the kvstore hold pages besides, but never
for long.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np

from paceline.contracts.hashing import PAGE_TOKENS, group_key, pages_for
from paceline.engine.demand import Demand
from paceline.engine.layout import PageGroup
from paceline.engine.pages import OutOfPagesError, PagePool
from paceline.engine.prefixes import longest_prefix
from paceline.engine.sequence import Sequence


class Allocator:
    """Between the sequences of one worker and its pool."""

    def __init__(self, pool: PagePool, groups: Items[PageGroup], demand: Demand) -> None:
        self.pool = pool
        self.groups = groups
        self._demand = demand
        self._full = [g for g, group in enumerate(groups) if group.span is None]
        self._spans = [g for g, group in enumerate(groups) if group.span is not None]
        self._promised: dict[Sequence, int] = {}

    @property
    def spare(self) -> int:
        """Pages that are promised to nobody."""
        return self.pool.available - sum(self._lacking(*promised) for promised in self._promised.items())

    def reusable(self, hashes: Items[bytes], position: int | None = None) -> int:
        """Pages of the longest prefix that is here for a row at `position`; see `longest_prefix`."""
        return longest_prefix(
            self.groups,
            len(hashes),
            lambda g, i: self.pool.find(group_key(hashes[i], g)) is not None,
            position,
        )

    def admit(self, sequence: Sequence) -> bool:
        """Reuse the longest cached prefix, and take or promise the pages for the rest of `tokens`.

        A `remote` sequence begins behind them: it takes what that row sees, and at once. False changes nothing.
        """
        tokens = len(sequence.tokens)
        # At least one token has to run, for the logits behind it; all of them for what is said of a prompt.
        reusable = sequence.hashes[: (tokens - 1) // PAGE_TOKENS]
        if sequence.scores and not sequence.remote:
            reusable = []
        prefix = self.reusable(reusable, tokens if sequence.remote else None)
        self._reuse(sequence, prefix, tokens if sequence.remote else prefix * PAGE_TOKENS)
        promise = 0 if sequence.remote else self._demand.moving(tokens)
        missing = _missing(sequence, range(len(self.groups)) if sequence.remote else self._full, tokens)
        if _count(missing) + self._lacking(sequence, promise) > self.spare:
            self.release(sequence)
            return False
        self._take(sequence, missing)
        if promise:
            self._promised[sequence] = promise
        sequence.computed = prefix * PAGE_TOKENS
        sequence.published = prefix
        return True

    def extend(self, sequence: Sequence, tokens: int) -> bool:
        """Have pages for `tokens` positions. False, which changes nothing, where that would break a promise."""
        if tokens <= sequence.holdings.capacity:
            return True
        lasting, moving = (_missing(sequence, groups, tokens) for groups in (self._full, self._spans))
        asked = _count(lasting) + max(0, _count(moving) - self._allowance(sequence))
        if asked and asked > self.spare:
            return False
        try:
            self._take(sequence, lasting + moving)
        except OutOfPagesError:
            return False  # A copy from or to the kvstore holds them for a moment.
        return True

    def settle(self, sequence: Sequence) -> None:
        """The sequence decodes: from now on it asks for every page."""
        self._promised.pop(sequence, None)

    def advance(self, sequence: Sequence) -> None:
        """Offer the pages that became full to others of the tenant, and give back those that no later row sees."""
        full = sequence.computed // PAGE_TOKENS
        if full > sequence.published:
            self._publish(sequence, full)
        for g in self._spans:
            start = self.groups[g].first_page(sequence.computed)
            if start > sequence.holdings.starts[g]:
                self.pool.release(sequence.holdings.drop(g, start))

    def release(self, sequence: Sequence) -> None:
        """Give everything back."""
        pages = sequence.holdings.between(0, sequence.holdings.end)
        self._clear(sequence)
        self.pool.release(pages)

    def quarantine(self, sequence: Sequence, resident: int) -> list[int]:
        """Give everything back, but of the pages behind the first `resident` nobody gets one yet: these."""
        reused = sequence.holdings.between(0, resident)
        written = sequence.holdings.between(resident, sequence.holdings.end)
        self._clear(sequence)
        self.pool.release(reused)
        self.pool.quarantine(written)
        return written

    def owns(self, sequence: Sequence) -> bool:
        """Whether all pages of the sequence still bear the tags that it recorded."""
        return not len(self.pool.tags.stale(*sequence.holdings.live()))

    def forget(self, sequence: Sequence) -> None:
        """Give back the pages that are still the sequence's own; the others belong to somebody else now."""
        pages, tags = sequence.holdings.live()
        own = np.delete(pages, self.pool.tags.stale(pages, tags))
        self._clear(sequence)
        self.pool.release(own.tolist())

    def _reuse(self, sequence: Sequence, prefix: int, position: int) -> None:
        """Hold what a row at `position` sees of the cached prefix."""
        for g, group in enumerate(self.groups):
            start = group.first_page(position)
            found = self.pool.lookup([group_key(h, g) for h in sequence.hashes[start:prefix]])
            self.pool.acquire(found)
            sequence.holdings.begin(g, start)
            sequence.holdings.take(g, found, self.pool.tags)

    def _take(self, sequence: Sequence, missing: list[tuple[int, int]]) -> None:
        """Allocate so many pages for each (group, count). Raises `OutOfPagesError`, with nothing taken."""
        fresh = self.pool.allocate(_count(missing))
        for g, count in missing:
            sequence.holdings.take(g, fresh[:count], self.pool.tags)
            del fresh[:count]

    def _publish(self, sequence: Sequence, full: int) -> None:
        if full > len(sequence.hashes):
            sequence.hash_full_pages()
        holdings = sequence.holdings
        for g in range(len(self.groups)):
            for i in range(max(sequence.published, holdings.starts[g]), full):
                self.pool.publish(int(holdings.pages[g, i]), group_key(sequence.hashes[i], g))
        sequence.published = full

    def _lacking(self, sequence: Sequence, promise: int) -> int:
        """Pages that the pool has to keep for a promise."""
        own = sum(self.pool.exclusive(sequence.holdings.of(g)) for g in self._spans)
        return max(0, promise - own)

    def _allowance(self, sequence: Sequence) -> int:
        """Pages that a sequence may take in groups with a span, because they were promised to it."""
        held = sum(len(sequence.holdings.of(g)) for g in self._spans)
        return max(0, self._promised.get(sequence, 0) - held)

    def _clear(self, sequence: Sequence) -> None:
        self.settle(sequence)
        sequence.surrender()


def _missing(sequence: Sequence, groups: Iterable[int], tokens: int) -> list[tuple[int, int]]:
    """(group, count) of the pages up to `tokens` positions that the sequence does not have."""
    end, ends = pages_for(tokens), sequence.holdings.ends
    return [(g, end - ends[g]) for g in groups if ends[g] < end]


def _count(missing: Iterable[tuple[int, int]]) -> int:
    return sum(count for _, count in missing)

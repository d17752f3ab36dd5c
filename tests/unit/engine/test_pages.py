import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.contracts.errors import InternalError
from paceline.engine.pages import NO_TAG, NoTags, OutOfPagesError, PagePool
from tests.builders import make_pool


def test_pages_are_evicted_least_recently_used_and_ends_before_prefixes() -> None:
    pool = make_pool(4)
    a, b, c = pool.allocate(3)
    for page, key in ((a, b"a"), (b, b"b"), (c, b"c")):
        pool.publish(page, key)
    pool.release([a, b])  # one sequence: a is the prefix of b
    pool.release([c])
    assert (pool.cached, pool.used, pool.available) == (3, 0, 4)
    first = pool.allocate(2)  # the free one, then b
    assert first[1] == b
    assert pool.lookup([b"a"]) == [a]
    assert pool.lookup([b"a", b"b"]) == [a]
    assert pool.allocate(1) == [a]
    assert pool.allocate(1) == [c]
    with pytest.raises(OutOfPagesError):
        pool.allocate(1)


def test_a_shared_page_stays_until_its_last_holder_leaves() -> None:
    pool = make_pool(2)
    (page,) = pool.allocate(1)
    pool.publish(page, b"k")
    pool.acquire([page])
    pool.release([page])
    assert pool.used == 1
    pool.release([page])
    assert (pool.used, pool.cached) == (0, 1)
    with pytest.raises(InternalError, match="released twice"):
        pool.release([page])


def test_the_first_page_of_a_key_wins() -> None:
    pool = make_pool(2)
    a, b = pool.allocate(2)
    pool.publish(a, b"k")
    pool.publish(b, b"k")
    pool.release([a, b])
    assert pool.lookup([b"k"]) == [a]
    assert pool.cached == 1


def test_a_tag_changes_when_a_page_is_allocated_and_when_it_is_freed() -> None:
    pool = make_pool(1)
    seen = [pool.tags.tag(0)]
    for _ in range(3):
        (page,) = pool.allocate(1)
        seen.append(pool.tags.tag(page))
        pool.release([page])
        seen.append(pool.tags.tag(page))
    assert len(set(seen)) == 7


def test_a_cached_page_keeps_its_tag_until_it_is_evicted() -> None:
    pool = make_pool(1)
    pool.allocate(1)
    pool.publish(0, b"k")
    tag = pool.tags.tag(0)
    pool.release([0])
    pool.acquire(pool.lookup([b"k"]))
    assert pool.tags.tag(0) == tag
    pool.release([0])
    pool.allocate(1)
    assert pool.tags.tag(0) != tag


def test_quarantined_pages_are_stale_at_once_and_free_only_later() -> None:
    pool = make_pool(2)
    (page,) = pool.allocate(1)
    tag = pool.tags.tag(page)
    pool.quarantine([page])
    pages, tags = np.array([page]), np.array([tag], dtype=np.uint64)
    assert list(pool.tags.stale(pages, tags)) == [0]
    assert (pool.available, pool.used, pool.quarantined) == (1, 1, 1)
    pool.end_quarantine([page])
    assert (pool.available, pool.used, pool.quarantined) == (2, 0, 0)


def test_stale_pages_are_found_in_a_table_whose_rows_have_gaps() -> None:
    pool = make_pool(4)
    pool.allocate(4)
    table = np.array([[1, 2], [3, 0]], dtype=np.int32)  # the last one is no page
    tags = np.array([[pool.tags.tag(1), pool.tags.tag(2)], [pool.tags.tag(3), NO_TAG]], dtype=np.uint64)
    assert list(pool.tags.stale(table, tags)) == []
    pool.tags.change(2)
    assert list(pool.tags.stale(table, tags)) == [1]


def test_the_null_tracker_finds_nothing() -> None:
    pool = PagePool(2, NoTags())
    pool.release(pool.allocate(2))
    assert list(pool.tags.stale(np.array([0, 1]), np.array([9, 9], dtype=np.uint64))) == []


class PoolMachine(RuleBasedStateMachine):
    """Against a model that knows only who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(6)
        self.held: list[tuple[int, int]] = []  # page, its tag when it was taken
        self.keys = 0

    @rule(count=st.integers(0, 3))
    def allocate(self, count: int) -> None:
        if count > self.pool.available:
            with pytest.raises(OutOfPagesError):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert not {p for p, _ in self.held} & set(pages)
        self.held += [(p, self.pool.tags.tag(p)) for p in pages]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), publish=st.booleans())
    def release(self, data: st.DataObject, publish: bool) -> None:
        page, tag = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        assert self.pool.tags.tag(page) == tag
        if publish:
            self.keys += 1
            self.pool.publish(page, str(self.keys).encode())
        self.pool.release([page])

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        key = str(data.draw(st.integers(0, self.keys))).encode()
        pages = self.pool.lookup([key])
        self.pool.acquire(pages)
        self.held += [(p, self.pool.tags.tag(p)) for p in pages]

    @precondition(lambda self: self.held)
    @rule()
    def quarantine_and_end(self) -> None:
        page, _ = self.held[-1]
        if [p for p, _ in self.held].count(page) > 1:
            return
        try:
            self.pool.quarantine([page])
        except InternalError:
            return  # it has a key
        self.held.pop()
        self.pool.end_quarantine([page])

    @invariant()
    def consistent(self) -> None:
        self.pool.check()
        assert self.pool.used == len({p for p, _ in self.held})
        assert all(self.pool.tags.tag(page) == tag for page, tag in self.held)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

"""Whatever the order of calls: no page is in two states, none is taken from under a reader or a writer."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.kvstore.store import Page, Store

PAGES = 6
WORKERS = st.sampled_from(["p", "q"])
KEYS = st.lists(st.sampled_from([b"%d" % n for n in range(9)]), max_size=5)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tags = np.zeros(PAGES, np.uint64)
        self.store = Store(self.tags, "life", ttl_s=3.0)
        self.now = 0.0
        self.reading: dict[str, tuple[str, float, list[Page]]] = {}
        self.writing: dict[str, tuple[str, float, list[Page]]] = {}
        self.last = [0] * PAGES
        self.seen = {0}

    @rule(worker=WORKERS, keys=KEYS)
    def lookup(self, worker: str, keys: list[bytes]) -> None:
        lease = self.store.lookup(worker, keys, self.now)
        assert [page.key for page in lease.pages] == keys[: len(lease.pages)]
        for page in lease.pages:
            assert page.digest == b"digest of " + page.key
        if lease.pages:
            self.reading[lease.lease_id] = (worker, self.now + 3.0, lease.pages)

    @rule(worker=WORKERS, keys=KEYS)
    def reserve(self, worker: str, keys: list[bytes]) -> None:
        lease = self.store.reserve(worker, keys, self.now)
        granted = [page.key for page in lease.pages]
        assert granted == [key for key in dict.fromkeys(keys) if key in granted]
        if lease.pages:
            self.writing[lease.lease_id] = (worker, self.now + 3.0, lease.pages)

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.writing)))
        _, _, pages = self.writing.pop(lease_id)
        self.store.publish(lease_id, [b"digest of " + page.key for page in pages])

    @precondition(lambda self: self.writing or self.reading)
    @rule(data=st.data(), damaged=KEYS)
    def release(self, data: st.DataObject, damaged: list[bytes]) -> None:
        lease_id = data.draw(st.sampled_from(sorted({**self.writing, **self.reading})))
        self.writing.pop(lease_id, None)
        self.reading.pop(lease_id, None)
        self.store.release(lease_id, damaged)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.store.expire(self.now)
        self.reading = {i: lease for i, lease in self.reading.items() if lease[1] > self.now}

    @rule(worker=WORKERS)
    def doubt(self, worker: str) -> None:
        self.store.doubt_worker(worker)
        self.reading = {i: lease for i, lease in self.reading.items() if lease[0] != worker}

    @rule(worker=WORKERS)
    def end(self, worker: str) -> None:
        self.store.end_worker(worker)
        self.reading = {i: lease for i, lease in self.reading.items() if lease[0] != worker}
        self.writing = {i: lease for i, lease in self.writing.items() if lease[0] != worker}

    @invariant()
    def every_page_is_in_one_state(self) -> None:
        usage = self.store.usage
        assert usage.free + usage.stored + usage.reserved + usage.quarantined == usage.total == PAGES
        assert usage.pinned == len({p.ref.page for _, _, pages in self.reading.values() for p in pages})
        assert usage.reserved + usage.quarantined == sum(len(pages) for _, _, pages in self.writing.values())
        assert self.store.leases == len(self.reading) + len(self.writing)

    @invariant()
    def what_is_leased_keeps_its_tag(self) -> None:
        for _, _, pages in [*self.reading.values(), *self.writing.values()]:
            for page in pages:
                assert int(self.tags[page.ref.page]) == page.ref.tag

    @invariant()
    def nobody_shares_a_page_with_a_writer(self) -> None:
        written = [p.ref.page for _, _, pages in self.writing.values() for p in pages]
        read = {p.ref.page for _, _, pages in self.reading.values() for p in pages}
        assert len(set(written)) == len(written)
        assert not read & set(written)

    @invariant()
    def no_tag_comes_back(self) -> None:
        tags = [int(tag) for tag in self.tags]
        for before, tag in zip(self.last, tags, strict=True):
            assert tag == before or tag not in self.seen
        self.seen.update(tags)
        self.last = tags

    def teardown(self) -> None:
        self.store.end_worker("p")
        self.store.end_worker("q")
        usage = self.store.usage
        assert (usage.pinned, usage.reserved, usage.quarantined, self.store.leases) == (0, 0, 0, 0)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

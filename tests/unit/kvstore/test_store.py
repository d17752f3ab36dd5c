from collections.abc import Sequence

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest, WorkerLost
from paceline.contracts.hashing import extend_chain, page_key, tenant_salt
from paceline.contracts.messages import PageRef
from paceline.kvstore.store import Store, Usage

TTL = 30.0


def store_of(pages: int) -> Store:
    return Store(np.zeros(pages, np.uint64), "life", ttl_s=TTL)


def keys(text: str) -> list[bytes]:
    return [c.encode() for c in text]


def put(store: Store, text: str, *, now: float = 0.0, worker: str = "p") -> str:
    """Store pages of these one-letter keys; the letters that there was room for."""
    lease = store.reserve(worker, keys(text), now)
    if lease.pages:
        store.publish(lease.lease_id, [b"digest " + page.key for page in lease.pages])
    return "".join(page.key.decode() for page in lease.pages)


def get(store: Store, text: str) -> str:
    """The stored prefix, without keeping it pinned."""
    lease = store.lookup("reader", keys(text), 0.0)
    store.release(lease.lease_id)
    return "".join(page.key.decode() for page in lease.pages)


def refs(lease_pages: Sequence[object]) -> list[PageRef]:
    return [page.ref for page in lease_pages]  # type: ignore[attr-defined]


def test_a_prefix_is_found_with_its_pages_tags_and_digests() -> None:
    store = store_of(4)
    written = store.reserve("p", keys("abc"), 0.0)
    assert written.lease_id == "life-0"
    assert refs(written.pages) == [PageRef(0, 1), PageRef(1, 2), PageRef(2, 3)]
    store.publish(written.lease_id, [b"A", b"B", b"C"])

    lease = store.lookup("p", keys("abxc"), 0.0)
    assert refs(lease.pages) == [PageRef(0, 1), PageRef(1, 2)]
    assert [page.digest for page in lease.pages] == [b"A", b"B"]
    assert store.counters == {"hits": 2, "misses": 2, "stored": 3, "evicted": 0, "damaged": 0}
    assert store.usage == Usage(total=4, free=1, stored=3, pinned=2, reserved=0, quarantined=0)


def test_a_sparse_lookup_pins_all_that_is_stored() -> None:
    store = store_of(4)
    put(store, "abc")
    lease = store.lookup("p", keys("xcya"), 0.0, sparse=True)
    assert [page.key for page in lease.pages] == [b"c", b"a"]
    assert (store.usage.pinned, store.counters["hits"], store.counters["misses"]) == (2, 2, 0)
    store.release(lease.lease_id)
    assert store.usage.pinned == 0


def test_pages_are_invisible_until_they_are_published() -> None:
    store = store_of(4)
    lease = store.reserve("p", keys("a"), 0.0)
    assert get(store, "a") == ""
    assert store.reserve("q", keys("ab"), 0.0).pages[0].key == b"b"
    store.publish(lease.lease_id, [b"A"])
    assert get(store, "a") == "a"


def test_what_is_stored_or_asked_twice_gets_no_room() -> None:
    store = store_of(8)
    assert put(store, "ab") == "ab"
    assert put(store, "abcdc") == "cd"
    assert put(store, "abcd") == ""
    assert store.leases == 0


def test_the_least_recently_used_page_goes_first_and_the_deepest_of_a_prefix_before_its_parents() -> None:
    store = store_of(5)
    put(store, "abc")
    put(store, "xy")
    assert put(store, "1") == "1"
    assert get(store, "abc") == "ab"
    assert put(store, "2") == "2"
    assert get(store, "x") == "x"
    assert get(store, "xy") == "x"
    assert store.counters["evicted"] == 2


def test_a_lookup_makes_pages_recent() -> None:
    store = store_of(4)
    put(store, "ab")
    put(store, "xy")
    assert get(store, "ab") == "ab"
    put(store, "12")
    assert get(store, "ab") == "ab"
    assert get(store, "xy") == ""


def test_a_reservation_makes_the_stored_part_of_its_prefix_recent() -> None:
    store = store_of(4)
    put(store, "ab")
    put(store, "xy")
    put(store, "ab1")
    put(store, "2")
    assert get(store, "ab1") == "ab1"


def test_a_prompt_larger_than_the_store_never_evicts_its_own_prefix() -> None:
    store = store_of(4)
    put(store, "xy")
    assert put(store, "abcdef") == "abcd"
    assert put(store, "abcdef") == ""
    assert get(store, "abcdef") == "abcd"


def test_pinned_pages_are_never_evicted() -> None:
    store = store_of(3)
    put(store, "abc")
    first = store.lookup("r", keys("ab"), 0.0)
    second = store.lookup("s", keys("a"), 0.0)
    assert put(store, "12345") == "1"
    store.release(first.lease_id)
    assert put(store, "2345") == "23"
    assert get(store, "a") == "a"
    store.release(second.lease_id)
    assert put(store, "456") == "456"
    assert get(store, "a") == ""


def test_reserved_pages_are_never_evicted() -> None:
    store = store_of(2)
    store.reserve("p", keys("ab"), 0.0)
    assert store.reserve("q", keys("c"), 0.0).pages == []


def test_a_released_reservation_leaves_nothing() -> None:
    store = store_of(2)
    lease = store.reserve("p", keys("ab"), 0.0)
    store.release(lease.lease_id)
    store.release(lease.lease_id)
    assert store.usage == Usage(total=2, free=2, stored=0, pinned=0, reserved=0, quarantined=0)
    assert put(store, "ab") == "ab"


def test_a_tag_changes_at_each_allocation_and_each_free() -> None:
    tags = np.zeros(1, np.uint64)
    store = Store(tags, "life", ttl_s=TTL)
    seen = [int(tags[0])]
    for text in "abc":
        put(store, text)
        seen.append(int(tags[0]))
    # Storing b frees the page of a (tag 2) and allocates it again (tag 3).
    assert seen == [0, 1, 3, 5]
    store.release(store.lookup("r", keys("c"), 0.0).lease_id, damaged=keys("c"))
    assert int(tags[0]) == 6


def test_a_damaged_page_is_never_found_again_and_is_freed_with_its_last_reader() -> None:
    store = store_of(3)
    put(store, "abc")
    first = store.lookup("r", keys("abc"), 0.0)
    second = store.lookup("s", keys("ab"), 0.0)
    store.release(first.lease_id, damaged=keys("bz"))
    assert get(store, "abc") == "a"
    assert store.usage == Usage(total=3, free=0, stored=3, pinned=2, reserved=0, quarantined=0)
    store.release(second.lease_id, damaged=keys("b"))
    assert store.usage == Usage(total=3, free=1, stored=2, pinned=0, reserved=0, quarantined=0)
    assert store.counters["damaged"] == 1
    assert put(store, "b") == "b"
    assert get(store, "abc") == "abc"


def test_a_late_report_of_damage_does_not_touch_the_page_that_replaced_it() -> None:
    store = store_of(4)
    put(store, "a")
    early = store.lookup("r", keys("a"), 0.0)
    late = store.lookup("s", keys("a"), 0.0)
    store.release(early.lease_id, damaged=keys("a"))
    assert put(store, "a") == "a"
    store.release(late.lease_id, damaged=keys("a"))
    assert get(store, "a") == "a"


def test_read_leases_end_at_their_deadline() -> None:
    store = store_of(2)
    put(store, "ab")
    store.lookup("r", keys("a"), now=100.0)
    released = store.lookup("r", keys("ab"), now=101.0)
    store.lookup("r", keys("ab"), now=102.0)
    store.release(released.lease_id)
    assert store.next_deadline() == 130.0
    assert store.expire(129.9) == []
    assert store.leases == 2
    store.expire(130.0)
    assert store.leases == 1
    assert store.next_deadline() == 132.0
    store.expire(132.0)
    assert store.leases == 0
    assert store.next_deadline() is None
    assert store.usage.pinned == 0


def test_a_write_lease_that_ran_out_keeps_its_pages_in_quarantine() -> None:
    store = store_of(2)
    lease = store.reserve("p", keys("ab"), 0.0)
    assert store.expire(TTL) == [lease]
    assert store.usage == Usage(total=2, free=0, stored=0, pinned=0, reserved=0, quarantined=2)
    assert store.expire(10 * TTL) == []
    assert store.reserve("q", keys("a"), TTL).pages == []
    store.release(lease.lease_id)
    assert put(store, "a") == "a"


def test_a_late_writer_may_still_publish_from_quarantine() -> None:
    store = store_of(2)
    lease = store.reserve("p", keys("ab"), 0.0)
    store.expire(TTL)
    store.publish(lease.lease_id, [b"A", b"B"])
    assert get(store, "ab") == "ab"
    assert store.leases == 0


def test_the_first_to_publish_a_key_wins() -> None:
    store = store_of(3)
    late = store.reserve("p", keys("a"), 0.0)
    store.expire(TTL)
    quick = store.reserve("q", keys("a"), TTL)
    store.publish(quick.lease_id, [b"Q"])
    store.publish(late.lease_id, [b"P"])
    found = store.lookup("r", keys("a"), TTL)
    assert [(page.ref, page.digest) for page in found.pages] == [(quick.pages[0].ref, b"Q")]
    assert store.usage == Usage(total=3, free=2, stored=1, pinned=1, reserved=0, quarantined=0)


def test_the_end_of_a_quarantined_lease_does_not_give_away_keys_that_another_is_writing() -> None:
    store = store_of(4)
    late = store.reserve("p", keys("a"), 0.0)
    store.expire(TTL)
    store.reserve("q", keys("a"), TTL)
    store.release(late.lease_id)
    assert store.reserve("r", keys("a"), TTL).pages == []


def test_all_leases_of_a_worker_end_when_its_process_is_gone() -> None:
    store = store_of(4)
    put(store, "a")
    store.lookup("p", keys("a"), 0.0)
    store.reserve("p", keys("b"), 0.0)
    store.expire(TTL)
    store.reserve("p", keys("c"), TTL)
    other = store.reserve("q", keys("d"), TTL)
    store.end_worker("p")
    assert store.usage == Usage(total=4, free=2, stored=1, pinned=0, reserved=1, quarantined=0)
    store.publish(other.lease_id, [b"D"])
    assert get(store, "d") == "d"


def test_a_silent_worker_stops_reading_but_may_still_be_writing() -> None:
    store = store_of(4)
    put(store, "a")
    store.lookup("p", keys("a"), 0.0)
    lease = store.reserve("p", keys("b"), 0.0)
    other = store.reserve("q", keys("c"), 0.0)
    assert store.doubt_worker("p") == [lease]
    assert store.doubt_worker("p") == []
    assert store.usage == Usage(total=4, free=1, stored=1, pinned=0, reserved=1, quarantined=1)
    assert not other.quarantined


def test_publishing_an_unknown_lease_is_refused() -> None:
    store = store_of(2)
    with pytest.raises(WorkerLost):
        store.publish("earlier-0", [b"A"])
    lease = store.reserve("p", keys("ab"), 0.0)
    with pytest.raises(InvalidRequest):
        store.publish(lease.lease_id, [b"A"])
    put(store_of(1), "a")
    store.publish(lease.lease_id, [b"A", b"B"])
    with pytest.raises(WorkerLost):
        store.publish(lease.lease_id, [b"A", b"B"])
    reading = store.lookup("p", keys("ab"), 0.0)
    with pytest.raises(InvalidRequest):
        store.publish(reading.lease_id, [b"A", b"B"])


def test_a_tenant_never_finds_the_pages_of_another() -> None:
    tokens = list(range(256))
    profile = bytes(32)
    mine, theirs = (
        [page_key(h, profile) for h in extend_chain(tenant_salt(tenant, b"secret"), tokens)]
        for tenant in ("mine", "theirs")
    )
    store = store_of(8)
    lease = store.reserve("p", mine, 0.0)
    store.publish(lease.lease_id, [b"digest"] * 4)
    assert len(store.lookup("p", mine, 0.0).pages) == 4
    assert store.lookup("p", theirs, 0.0).pages == []
    assert len(store.reserve("p", theirs, 0.0).pages) == 4

import os
from collections.abc import Iterator

import pytest

from paceline.contracts.errors import InvalidRequest, ProtocolError, Unavailable
from paceline.transport import header
from paceline.transport.arena import Arena, Mapping


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(pages=4, page_bytes=1000)
    yield arena
    arena.close()


def test_a_new_arena_is_zero(arena: Arena) -> None:
    assert arena.pages.shape == (4, 1000)
    assert arena.tags.tolist() == [0, 0, 0, 0]
    assert not arena.pages.any()
    assert arena.pages.flags.c_contiguous


def test_memory_is_taken_beside_those_who_use_it() -> None:
    arena = Arena.create(pages=5, page_bytes=5 << 20)
    arena.pages[2, 4096] = 7
    assert os.fstat(arena.fd).st_blocks * 512 < arena.pages.nbytes
    arena.populate()
    assert os.fstat(arena.fd).st_blocks * 512 >= arena.pages.nbytes
    assert arena.pages.sum() == arena.pages[2, 4096] == 7
    arena.close()


def test_a_mapping_shares_the_memory_both_ways(arena: Arena) -> None:
    mapping = Mapping.of(arena.fd)
    arena.pages[3] = 7
    arena.tags[3] = 2**63 + 1
    mapping.pages[0, :4] = [1, 2, 3, 4]
    assert mapping.pages[3].tolist() == [7] * 1000
    assert int(mapping.tags[3]) == 2**63 + 1
    assert arena.pages[0, :5].tolist() == [1, 2, 3, 4, 0]


def test_a_peer_cannot_write_tags(arena: Arena) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Mapping.of(arena.fd).tags[0] = 1


def test_nobody_can_resize_the_memory_under_a_mapping(arena: Arena) -> None:
    for size in (4096, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)


def test_memory_that_could_still_shrink_is_not_mapped() -> None:
    plan = header.plan(1, 1)
    fd = os.memfd_create("unsealed")
    try:
        os.write(fd, header.encode(plan))
        os.ftruncate(fd, plan.size)
        with pytest.raises(ProtocolError, match="sealed"):
            Mapping.of(fd)
    finally:
        os.close(fd)


def test_a_mapping_outlives_its_arena() -> None:
    arena = Arena.create(1, 4)
    mapping = Mapping.of(arena.fd)
    arena.pages[0] = [1, 2, 3, 4]
    arena.close()
    arena.close()
    assert mapping.pages[0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("pages", "page_bytes"), [(0, 1), (1, 0), (-1, 4)])
def test_an_arena_without_room_is_refused(pages: int, page_bytes: int) -> None:
    with pytest.raises(InvalidRequest):
        Arena.create(pages, page_bytes)


def test_a_system_without_memfd_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(Unavailable, match="Linux"):
        Arena.create(1, 1)

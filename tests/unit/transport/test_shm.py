import asyncio
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest, ProtocolError, Unavailable
from paceline.contracts.messages import PageRef, ShmTransfer
from paceline.transport.arena import Arena
from paceline.transport.interface import Bytes, StalePage
from paceline.transport.pages import ShmPages
from paceline.transport.shm import ShmTransport
from tests.helpers import until

PAGE = 4096


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(pages=4, page_bytes=PAGE)
    arena.tags[:] = [10, 11, 12, 13]
    yield arena
    arena.close()


@pytest.fixture
async def owner(arena: Arena, tmp_path: Path) -> AsyncIterator[ShmTransport]:
    owner = ShmTransport(arena, tmp_path, "decode-1", "life-1")
    await owner.start()
    yield owner
    await owner.close()


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[ShmTransport]:
    peer = ShmTransport(None, tmp_path, "prefill-1", "life-9")
    await peer.start()
    yield peer
    await peer.close()


class Lost:
    """Records the workers that an owner saw leave."""

    def __init__(self, owner: ShmTransport) -> None:
        self.workers: list[str] = []
        self._changed = asyncio.Event()
        owner.on_peer_lost(self._record)

    def _record(self, worker: str) -> None:
        self.workers.append(worker)
        self._changed.set()

    async def next(self) -> str:
        await asyncio.wait_for(self._changed.wait(), 10)
        self._changed.clear()
        return self.workers[-1]


def filled(value: int) -> Bytes:
    return np.full(PAGE, value, np.uint8)


async def test_pages_travel_to_their_references(
    arena: Arena, owner: ShmTransport, peer: ShmTransport
) -> None:
    pages = await peer.connect(owner.params)
    pages.write([PageRef(2, 12), PageRef(0, 10)], [filled(2), filled(7)])
    assert [int(page[0]) for page in arena.pages] == [7, 0, 2, 0]
    assert (arena.pages[2] == 2).all()

    out = [filled(0), filled(0)]
    arena.pages[3, -1] = 9
    pages.read([PageRef(3, 13), PageRef(2, 12)], out)
    assert out[0].tolist() == [0] * (PAGE - 1) + [9]
    assert out[1].tolist() == [2] * PAGE


async def test_a_page_that_was_reassigned_before_the_copy_is_not_written(
    arena: Arena, owner: ShmTransport, peer: ShmTransport
) -> None:
    pages = await peer.connect(owner.params)
    arena.tags[1] = 99
    with pytest.raises(StalePage, match="page 1 bears tag 0x63, the reference says 0xb") as stale:
        pages.write([PageRef(0, 10), PageRef(1, 11)], [filled(1), filled(1)])
    assert stale.value.page == 1
    assert arena.pages[:, 0].tolist() == [1, 0, 0, 0]
    with pytest.raises(StalePage):
        pages.read([PageRef(1, 11)], [filled(0)])


@pytest.mark.parametrize("verb", ["read", "write"])
async def test_a_page_that_is_reassigned_during_the_copy_is_noticed(
    verb: str, arena: Arena, owner: ShmTransport, peer: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = await peer.connect(owner.params)

    def copy_and_reassign(to: Bytes, source: Bytes) -> None:
        to[:] = source
        arena.tags[2] = 77

    monkeypatch.setattr(np, "copyto", copy_and_reassign)
    with pytest.raises(StalePage, match="page 2 bears tag 0x4d"):
        getattr(pages, verb)([PageRef(2, 12)], [filled(1)])


@pytest.mark.parametrize("page", [4, -1, 2**40])
async def test_a_page_outside_the_arena_is_stale(
    page: int, arena: Arena, owner: ShmTransport, peer: ShmTransport
) -> None:
    pages = await peer.connect(owner.params)
    with pytest.raises(StalePage, match="not in the arena"):
        pages.write([PageRef(0, 10), PageRef(page, 10)], [filled(1), filled(1)])
    assert not arena.pages.any()


@pytest.mark.parametrize(
    "arrays", [[], [np.ones(1, np.uint8)], [np.ones(PAGE, np.uint16)], [np.ones((1, PAGE), np.uint8)]]
)
async def test_arrays_that_are_not_pages_are_refused(
    arrays: list[Bytes], arena: Arena, owner: ShmTransport, peer: ShmTransport
) -> None:
    pages = await peer.connect(owner.params)
    with pytest.raises(ProtocolError):
        pages.write([PageRef(0, 10)], arrays)
    assert not arena.pages.any()


async def test_one_life_of_an_owner_is_mapped_once(owner: ShmTransport, peer: ShmTransport) -> None:
    first, second = await asyncio.gather(peer.connect(owner.params), peer.connect(owner.params))
    assert first is second is await peer.connect(owner.params)


async def test_another_incarnation_is_unavailable(owner: ShmTransport, peer: ShmTransport) -> None:
    with pytest.raises(Unavailable, match="this is arena life-1, not life-2"):
        await peer.connect(ShmTransfer(socket=owner.params.socket, incarnation="life-2"))


async def test_an_owner_that_restarts_is_mapped_anew(
    arena: Arena, owner: ShmTransport, peer: ShmTransport, tmp_path: Path
) -> None:
    old = await peer.connect(owner.params)
    await owner.close()
    with pytest.raises(Unavailable):
        old.write([PageRef(0, 10)], [filled(1)])
    with pytest.raises(Unavailable):
        await peer.connect(owner.params)

    fresh = Arena.create(1, PAGE)
    successor = ShmTransport(fresh, tmp_path, "decode-1", "life-2")
    await successor.start()
    (await peer.connect(successor.params)).write([PageRef(0, 0)], [filled(5)])
    assert int(fresh.pages[0, 0]) == 5
    assert not arena.pages.any()
    await successor.close()
    fresh.close()


async def test_an_owner_that_never_answers_is_unavailable(
    peer: ShmTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.transport.shm.CONNECT_SECONDS", 0.05)
    path = str(tmp_path / "mute.sock")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        with pytest.raises(Unavailable, match=r"no answer within 0.05 s"):
            await peer.connect(ShmTransfer(socket=path, incarnation="x"))


async def test_the_owner_hears_when_a_mapping_closes(owner: ShmTransport, peer: ShmTransport) -> None:
    lost = Lost(owner)
    assert not owner.has_peer("prefill-1")
    pages = await peer.connect(owner.params)
    assert owner.has_peer("prefill-1")
    pages.close()
    assert await lost.next() == "prefill-1"
    assert not owner.has_peer("prefill-1")


def mapped_arenas() -> int:
    """Mappings of arenas in this process."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:paceline-arena" in line for line in maps)


async def test_the_memory_of_a_dead_owner_is_let_go(
    arena: Arena, owner: ShmTransport, peer: ShmTransport
) -> None:
    own = mapped_arenas()
    pages = await peer.connect(owner.params)
    assert mapped_arenas() == own + 2
    await owner.close()
    await until(lambda: mapped_arenas() == own)
    assert pages.lost


async def test_a_recall_without_a_mapping_returns(owner: ShmTransport) -> None:
    await owner.recall("prefill-1")


async def test_a_recalled_peer_unmaps_and_may_connect_again(
    arena: Arena, owner: ShmTransport, peer: ShmTransport, tmp_path: Path
) -> None:
    bystander = ShmTransport(None, tmp_path, "prefill-2", "life-1")
    untouched = await bystander.connect(owner.params)
    lost = Lost(owner)
    pages = await peer.connect(owner.params)
    await owner.recall("prefill-1")
    assert pages.lost
    assert await lost.next() == "prefill-1"
    with pytest.raises(Unavailable):
        pages.write([PageRef(0, 10)], [filled(1)])
    (await peer.connect(owner.params)).write([PageRef(0, 10)], [filled(1)])
    untouched.write([PageRef(1, 11)], [filled(2)])
    assert arena.pages[:, 0].tolist() == [1, 2, 0, 0]
    await bystander.close()


async def test_a_copy_in_flight_keeps_the_peer_from_being_lost(
    arena: Arena, owner: ShmTransport, peer: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Lost(owner)
    started, finish = threading.Event(), threading.Event()

    def slow_copy(to: Bytes, source: Bytes) -> None:
        started.set()
        finish.wait(10)
        to[:] = source

    monkeypatch.setattr(np, "copyto", slow_copy)
    pages = await peer.connect(owner.params)
    write = asyncio.create_task(asyncio.to_thread(pages.write, [PageRef(0, 10)], [filled(3)]))
    await asyncio.to_thread(started.wait, 10)
    recall = asyncio.create_task(owner.recall("prefill-1"))
    pages.close()
    pages.close()

    # A round trip on the same loop: had the connection ended, the owner would know by now.
    witness = ShmTransport(None, Path(owner.params.socket).parent, "witness", "life-1")
    (await witness.connect(owner.params)).close()
    assert await lost.next() == "witness"
    assert lost.workers == ["witness"]
    assert not recall.done()
    with pytest.raises(Unavailable):
        pages.write([PageRef(1, 11)], [filled(3)])

    finish.set()
    await write
    await recall
    assert await lost.next() == "prefill-1"
    assert arena.pages[:, 0].tolist() == [3, 0, 0, 0]


async def test_a_worker_is_lost_with_the_last_connection_of_its_life(
    owner: ShmTransport, peer: ShmTransport, tmp_path: Path
) -> None:
    lost = Lost(owner)
    twin = ShmTransport(None, tmp_path, "prefill-1", "life-9")
    await twin.connect(owner.params)
    await peer.connect(owner.params)
    await twin.close()
    witness = ShmTransport(None, tmp_path, "witness", "life-1")
    (await witness.connect(owner.params)).close()
    assert await lost.next() == "witness"
    await peer.close()
    assert await lost.next() == "prefill-1"
    assert lost.workers == ["witness", "prefill-1"]


PEER_PROCESS = """
import asyncio, sys
from pathlib import Path
import numpy as np
import structlog
from paceline.contracts.messages import PageRef, ShmTransfer
from paceline.transport.shm import ShmTransport

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(socket, incarnation):
    peer = ShmTransport(None, Path(socket).parent, "prefill-2", "life-3")
    pages = await peer.connect(ShmTransfer(socket=socket, incarnation=incarnation))
    pages.write([PageRef(1, 11)], [np.full(4096, 6, np.uint8)])
    sys.stdout.write("written\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_owner_hears_when_a_process_is_killed(arena: Arena, owner: ShmTransport) -> None:
    lost = Lost(owner)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER_PROCESS, owner.params.socket, "life-1", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"written\n"
    assert arena.pages[:, 0].tolist() == [0, 6, 0, 0]
    assert lost.workers == []
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert await lost.next() == "prefill-2"


async def test_an_owner_that_closes_loses_nobody_and_leaves_no_file(
    owner: ShmTransport, peer: ShmTransport
) -> None:
    lost = Lost(owner)
    await peer.connect(owner.params)
    await owner.close()
    await owner.close()
    assert lost.workers == []
    assert not os.path.exists(owner.params.socket)


async def test_a_process_of_another_user_gets_nothing(
    owner: ShmTransport, peer: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unavailable):
        await peer.connect(owner.params)


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n", b"x" * 5000, b'{"type":"hello","worker":1}\n', b""])
async def test_a_stranger_is_dropped_and_the_next_peer_served(
    hello: bytes, owner: ShmTransport, peer: ShmTransport
) -> None:
    lost = Lost(owner)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.setblocking(False)
        await loop.sock_connect(stranger, owner.params.socket)
        await loop.sock_sendall(stranger, hello)
        if hello:
            assert await loop.sock_recv(stranger, 100) == b""
    assert isinstance(await peer.connect(owner.params), ShmPages)
    assert lost.workers == []


async def test_the_socket_file_of_a_dead_process_is_replaced(arena: Arena, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "decode-1.sock"))
    owner = ShmTransport(arena, tmp_path, "decode-1", "life-1")
    await owner.start()
    peer = ShmTransport(None, tmp_path, "prefill-1", "life-1")
    await peer.connect(owner.params)
    await peer.close()
    await owner.close()


async def test_the_socket_of_a_live_process_is_not(
    arena: Arena, owner: ShmTransport, peer: ShmTransport, tmp_path: Path
) -> None:
    rival = ShmTransport(arena, tmp_path, "decode-1", "life-2")
    with pytest.raises(Unavailable, match="another live process"):
        await rival.start()
    await rival.close()
    await peer.connect(owner.params)


async def test_the_directory_is_private(arena: Arena, tmp_path: Path) -> None:
    owner = ShmTransport(arena, tmp_path / "run" / "arenas", "decode-1", "life-1")
    await owner.start()
    assert stat.S_IMODE((tmp_path / "run" / "arenas").stat().st_mode) == 0o700
    await owner.close()


async def test_a_path_too_long_for_a_socket_says_what_to_do(arena: Arena, tmp_path: Path) -> None:
    owner = ShmTransport(arena, tmp_path / ("x" * 100), "decode-1", "life-1")
    with pytest.raises(InvalidRequest, match="PACELINE_RUN_DIR"):
        await owner.start()


async def test_a_worker_without_an_arena_has_no_params(peer: ShmTransport) -> None:
    with pytest.raises(Unavailable, match="prefill-1 has no arena"):
        _ = peer.params

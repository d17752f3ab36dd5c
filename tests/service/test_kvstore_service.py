"""The kvstore over the bus in memory, with real shared memory."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline.bus import rpc
from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.contracts import messages as m
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.errors import InvalidRequest, Unavailable, WorkerLost
from paceline.kvstore import tier
from paceline.kvstore.service import KvStoreService
from paceline.kvstore.settings import Settings
from paceline.transport.interface import Bytes, StalePage
from paceline.transport.shm import ShmTransport
from tests.helpers import close_context, make_context, settle, until

PAGE = 4096
PAGES = 8
LEASE_S = 30.0
STORE = "kvstore-1"


class Node:
    """One kvstore on a bus of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = MemoryBroker()
        self.service: KvStoreService

    async def start(self) -> None:
        self.context = await make_context(self.broker.client(), "kvstore", STORE)
        self.service = KvStoreService(self.context, Settings(self.directory, PAGES * PAGE, LEASE_S))
        await self.context.api.start()
        await self.service.start()

    async def stop(self) -> None:
        await self.service.close()
        await close_context(self.context)

    async def until_no_lease(self) -> m.Load:
        await asyncio.wait_for(self.service.drain(), 10)
        return self.service.load()


class Worker:
    """What a prefill worker does with the store."""

    def __init__(self, node: Node, name: str) -> None:
        self.name = name
        self.node = node
        self.bus: Bus = node.broker.client()
        self.transport = ShmTransport(None, node.directory, name, "life-1")

    async def lookup(self, *keys: bytes) -> m.Lease:
        return await rpc.call(
            self.bus, subjects.LOOKUP, "kvstore", STORE, m.Lookup(worker=self.name, keys=list(keys))
        )

    async def reserve(self, *keys: bytes, page_bytes: int = PAGE) -> m.Reserved:
        message = m.Reserve(worker=self.name, keys=list(keys), page_bytes=page_bytes)
        return await rpc.call(self.bus, subjects.RESERVE, "kvstore", STORE, message)

    async def publish(self, lease_id: str, *digests: bytes) -> None:
        message = m.Publish(lease_id=lease_id, digests=list(digests))
        await rpc.call(self.bus, subjects.PUBLISH, "kvstore", STORE, message)

    async def release(self, lease_id: str, *damaged: bytes) -> None:
        message = m.Release(lease_id=lease_id, damaged=list(damaged))
        await rpc.call(self.bus, subjects.RELEASE, "kvstore", STORE, message)

    async def write(self, room: m.Reserved, *values: int) -> None:
        pages = await self.transport.connect(room.transfer)
        await asyncio.to_thread(pages.write, room.pages, [filled(value) for value in values])

    async def read(self, lease: m.Lease) -> list[int]:
        """The first byte of each page."""
        pages = await self.transport.connect(lease.transfer)
        out = [filled(0) for _ in lease.pages]
        await asyncio.to_thread(pages.read, lease.pages, out)
        return [int(page[0]) for page in out]

    async def leave_the_bus(self) -> None:
        """A last beacon, which the roster takes for the end of this life."""
        for state in ("ready", "gone"):
            await self.beat(state=state)

    async def beat(self, *, role: m.Role = "prefill", page_bytes: int = PAGE, **fields: object) -> None:
        """A beacon of a ready worker on the store's host."""
        model = {"name": "m", "context": 1, "fingerprint": b"", "kv_dtype": "", "engine": ""}
        beacon = {
            "type": "beacon", "role": role, "worker": self.name, "incarnation": "life-1", "pid": 1,
            "host": self.node.context.identity.host, "state": "ready", "started": 1.0, "load": {},
            "model": model | {"page_bytes": page_bytes}, **fields,
        }  # fmt: skip
        await self.bus.publish(subjects.beacon(role, self.name), encode(msgspec.convert(beacon, m.Beacon)))
        await settle()

    async def store(self, *keys: bytes) -> None:
        room = await self.reserve(*keys)
        await self.write(room, *(key[0] for key in room.keys))
        await self.publish(room.lease_id, *(b"digest of " + key for key in room.keys))


def filled(value: int) -> Bytes:
    return np.full(PAGE, value, np.uint8)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.stop()


@pytest.fixture
async def worker(node: Node) -> AsyncIterator[Worker]:
    worker = Worker(node, "prefill-1")
    yield worker
    await worker.transport.close()


@pytest.fixture
async def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the event loop on by seconds."""
    loop = asyncio.get_running_loop()
    clock, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: clock() + sum(passed))
    return passed.append


async def test_pages_that_one_worker_stored_are_read_by_another(node: Node, worker: Worker) -> None:
    await node.start()
    room = await worker.reserve(b"a", b"b")
    assert room.keys == [b"a", b"b"]
    assert [ref.page for ref in room.pages] == [0, 1]
    await worker.write(room, 7, 8)
    load = node.service.load()
    assert (load.pages_used, load.pages_cached, load.pages_total, load.leases) == (2, 0, PAGES, 1)
    await worker.publish(room.lease_id, b"A", b"B")

    other = Worker(node, "prefill-2")
    lease = await other.lookup(b"a", b"b", b"c")
    assert lease.pages == room.pages
    assert lease.digests == [b"A", b"B"]
    assert await other.read(lease) == [7, 8]
    load = node.service.load()
    assert (load.pages_used, load.pages_cached, load.leases) == (2, 2, 1)
    await other.release(lease.lease_id)
    await other.transport.close()
    load = node.service.load()
    assert (load.pages_used, load.pages_cached, load.leases, load.tasks) == (0, 2, 0, 0)
    assert load.counters == {"hits": 2, "misses": 1, "stored": 2, "evicted": 0, "damaged": 0}


async def test_an_empty_store_answers_with_a_miss(node: Node, worker: Worker) -> None:
    await node.start()
    lease = await worker.lookup(b"a", b"b")
    assert (lease.pages, lease.digests) == ([], [])
    await worker.release(lease.lease_id)
    load = node.service.load()
    assert (load.pages_total, load.leases, load.counters["misses"]) == (0, 0, 2)


async def test_a_damaged_page_is_a_miss_for_everybody(node: Node, worker: Worker) -> None:
    await node.start()
    await worker.store(b"a", b"b")
    lease = await worker.lookup(b"a", b"b")
    await worker.release(lease.lease_id, b"a")
    assert (await worker.lookup(b"a", b"b")).pages == []
    load = node.service.load()
    assert (load.pages_cached, load.counters["damaged"]) == (1, 1)


async def test_pages_of_another_size_are_refused_while_something_is_stored(
    node: Node, worker: Worker
) -> None:
    await node.start()
    await worker.store(b"a")
    with pytest.raises(Unavailable, match="holds pages of 4096 bytes, not 8192"):
        await worker.reserve(b"b", page_bytes=2 * PAGE)
    assert await worker.read(await worker.lookup(b"a")) == [97]


async def test_pages_that_decode_workers_stored_make_room_for_those_of_prefill_workers(
    node: Node, worker: Worker
) -> None:
    """A decode worker that keeps KV in FP8 was the first to store, while no prefill worker was there."""
    await node.start()
    await worker.store(b"a", b"b")
    lease = await worker.lookup(b"a")
    late = await worker.reserve(b"c")
    await worker.beat(role="decode", page_bytes=PAGE)
    await worker.beat(page_bytes=2 * PAGE, host="elsewhere")
    with pytest.raises(Unavailable, match=f"holds pages of {PAGE} bytes"):
        await worker.reserve(b"a", page_bytes=2 * PAGE)
    await worker.beat(page_bytes=2 * PAGE)
    with pytest.raises(Unavailable, match=f"holds pages of {PAGE} bytes"):
        await worker.reserve(b"a", page_bytes=3 * PAGE)

    assert (await worker.reserve(b"a", page_bytes=2 * PAGE)).keys == [b"a"]
    with pytest.raises(Unavailable, match=f"holds pages of {2 * PAGE} bytes"):
        await worker.reserve(b"d")
    # What is left of the first arena is harmless.
    assert (await worker.lookup(b"a")).pages == []
    await worker.release(lease.lease_id)
    with pytest.raises(WorkerLost):
        await worker.publish(late.lease_id, b"digest of c")
    assert (node.service.load().pages_cached, node.service.load().leases) == (0, 1)


async def test_an_empty_store_takes_pages_of_another_size(node: Node, worker: Worker) -> None:
    await node.start()
    small = await worker.reserve(b"a")
    old = await worker.transport.connect(small.transfer)
    await worker.release(small.lease_id)
    large = await worker.reserve(b"a", b"b", b"c", b"d", b"e", page_bytes=2 * PAGE)
    assert large.keys == [b"a", b"b", b"c", b"d"]
    with pytest.raises(Unavailable):
        old.write(small.pages, [filled(1)])
    fresh = await worker.transport.connect(large.transfer)
    fresh.write(large.pages[3:], [np.full(2 * PAGE, 5, np.uint8)])


async def test_concurrent_first_reservations_share_one_arena(node: Node, worker: Worker) -> None:
    await node.start()
    one, two = await asyncio.gather(worker.reserve(b"a"), worker.reserve(b"b"))
    assert one.transfer == two.transfer
    assert one.pages[0].page != two.pages[0].page


async def test_memory_is_bounded_by_the_setting_and_a_quarter_of_what_is_free(
    node: Node, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start()
    with pytest.raises(Unavailable, match="32768 bytes hold no page of 40000"):
        await worker.reserve(b"a", page_bytes=40_000)
    monkeypatch.setattr(tier, "free_memory", lambda: 12 * PAGE + 1)
    assert len((await worker.reserve(*(b"%d" % n for n in range(5)))).pages) == 3
    with pytest.raises(InvalidRequest):
        await worker.reserve(b"z", page_bytes=0)


async def test_a_read_lease_ends_by_itself(
    node: Node, worker: Worker, pass_time: Callable[[float], None]
) -> None:
    await node.start()
    await worker.store(b"a")
    assert (await worker.lookup(b"a")).ttl_s == LEASE_S
    pass_time(LEASE_S / 2)
    later = await worker.lookup(b"a")
    assert node.service.load().leases == 2
    pass_time(LEASE_S / 2)
    await until(lambda: node.service.load().leases == 1)
    await worker.release(later.lease_id)
    load = node.service.load()
    assert (load.pages_used, load.pages_cached, load.leases) == (0, 1, 0)


async def test_a_writer_that_never_came_loses_its_pages_and_cannot_write_them_later(
    node: Node, worker: Worker, pass_time: Callable[[float], None]
) -> None:
    await node.start()
    room = await worker.reserve(b"a")
    pass_time(LEASE_S)
    load = await node.until_no_lease()
    assert (load.pages_used, load.pages_cached) == (0, 0)
    with pytest.raises(StalePage):
        await worker.write(room, 1)
    with pytest.raises(WorkerLost):
        await worker.publish(room.lease_id, b"A")


async def test_the_pages_of_a_silent_writer_are_nobodys_until_its_copy_has_ended(
    node: Node, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start()
    started, finish = threading.Event(), threading.Event()
    copy = np.copyto

    def slow_copy(to: Bytes, source: Bytes) -> None:
        started.set()
        finish.wait(10)
        copy(to, source)

    monkeypatch.setattr(np, "copyto", slow_copy)
    room = await worker.reserve(*(b"%d" % n for n in range(PAGES)))
    write = asyncio.create_task(worker.write(room, *range(PAGES)))
    assert await asyncio.to_thread(started.wait, 10)
    other = Worker(node, "prefill-2")
    assert (await other.reserve(b"x")).pages == []

    mapping = await worker.transport.connect(room.transfer)
    await worker.leave_the_bus()
    await until(lambda: mapping.lost)
    load = node.service.load()
    assert (load.pages_used, load.leases, load.tasks) == (PAGES, 1, 1)
    assert (await other.reserve(b"x")).pages == []

    finish.set()
    await write
    load = await node.until_no_lease()
    assert (load.pages_used, load.pages_cached, load.pages_total) == (0, 0, PAGES)


PEER = """
import asyncio, sys
from pathlib import Path
import msgspec, numpy as np, structlog
from paceline.contracts.messages import PageRef, ShmTransfer
from paceline.transport.shm import ShmTransport

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(transfer, read, write):
    transfer = msgspec.json.decode(transfer, type=ShmTransfer)
    read, write = (msgspec.json.decode(refs, type=list[PageRef]) for refs in (read, write))
    peer = ShmTransport(None, Path(transfer.socket).parent, "prefill-2", "life-1")
    pages = await peer.connect(transfer)
    page = np.zeros(4096, np.uint8)
    pages.read(read, [page])
    pages.write(write, [page])
    sys.stdout.write(f"{page[0]}\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_leases_of_a_process_that_is_killed_end(node: Node, worker: Worker) -> None:
    await node.start()
    await worker.store(b"a")
    mine = await worker.lookup(b"a")
    other = Worker(node, "prefill-2")
    reading, writing = await other.lookup(b"a"), await other.reserve(b"b")
    arguments = [msgspec.json.encode(x) for x in (reading.transfer, reading.pages, writing.pages)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"97\n"
    assert node.service.load().leases == 3

    process.send_signal(signal.SIGKILL)
    await process.wait()
    await worker.release(mine.lease_id)
    load = await node.until_no_lease()
    assert (load.pages_used, load.pages_cached, load.leases, load.tasks) == (0, 1, 0, 0)


async def test_the_leases_of_a_worker_that_left_the_bus_end(node: Node, worker: Worker) -> None:
    await node.start()
    await worker.store(b"a")
    await worker.lookup(b"a")
    await worker.reserve(b"b")
    assert node.service.load().leases == 2
    await worker.leave_the_bus()
    load = await node.until_no_lease()
    assert (load.pages_used, load.pages_cached) == (0, 1)


async def test_a_draining_store_grants_nothing_and_waits_for_its_leases(node: Node, worker: Worker) -> None:
    await node.start()
    await worker.store(b"a")
    lease = await worker.lookup(b"a")
    drain = asyncio.create_task(node.service.drain())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="leaving"):
        await worker.lookup(b"a")
    with pytest.raises(Unavailable, match="leaving"):
        await worker.reserve(b"b")
    assert not drain.done()
    assert await worker.read(lease) == [97]
    await worker.release(lease.lease_id)
    await drain


async def test_nothing_is_left_in_the_directory(node: Node, worker: Worker, tmp_path: Path) -> None:
    await node.start()
    await worker.store(b"a")
    assert os.listdir(tmp_path) == ["kvstore-1.sock"]
    await node.service.close()
    assert os.listdir(tmp_path) == []

"""JetStream on a real server."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from paceline.bus.interface import Delivery
from paceline.bus.jetstream import Conflict, JetStream, Stored
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.bus.work import Work
from paceline.contracts.errors import Unavailable

KEPT = {"subjects": ["kept.>"], "storage": "file", "max_msgs_per_subject": 1, "allow_direct": True}
QUEUE = {"subjects": ["work.>"], "storage": "file", "retention": "workqueue", "allow_direct": True}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "store with a space")
    await server.start()
    yield server
    await server.stop()


@contextlib.asynccontextmanager
async def client(server: NatsServer) -> AsyncIterator[JetStream]:
    bus = await NatsBus.connect(server.url, name="test")
    jetstream = JetStream(bus)
    try:
        await jetstream.stream("KEPT", KEPT)
        await jetstream.stream("QUEUE", QUEUE)
        await jetstream.consumer("QUEUE", "all", "work.>")
        yield jetstream
    finally:
        await bus.close()


async def pulled(jetstream: JetStream) -> Work:
    work = await jetstream.pull("QUEUE", "all")
    assert work is not None
    return work


async def soon(jetstream: JetStream) -> Stored:
    """What is kept under kept.a, once the server is back."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(Unavailable):
                if found := await jetstream.last("KEPT", "kept.a"):
                    return found
            await asyncio.sleep(0.05)


async def test_the_last_message_of_a_subject_is_kept(server: NatsServer) -> None:
    async with client(server) as js:
        assert await js.last("KEPT", "kept.a") is None
        await js.put("kept.a", b"one")
        sequence = await js.put("kept.a", b"two")
        assert await js.last("KEPT", "kept.a") == Stored("kept.a", sequence, b"two")
        assert await js.count("KEPT", "kept.*") == 1
        await js.drop("KEPT", "kept.a")
        assert await js.last("KEPT", "kept.a") is None
        assert await js.count("KEPT", "kept.*") == 0


async def test_a_message_is_only_stored_over_the_one_that_was_read(server: NatsServer) -> None:
    async with client(server) as js:
        first = await js.put("kept.a", b"one", over=0)
        with pytest.raises(Conflict):
            await js.put("kept.a", b"two", over=0)
        await js.put("kept.a", b"three", over=first)
        with pytest.raises(Conflict):
            await js.put("kept.a", b"four", over=first)
        found = await js.last("KEPT", "kept.a")
        assert found is not None
        assert found.data == b"three"


async def test_of_several_subjects_only_one_may_be_taken(server: NatsServer) -> None:
    async with client(server) as js:
        await js.put("kept.good.7", b"", over=0, among="kept.*.7")
        with pytest.raises(Conflict):
            await js.put("kept.bad.7", b"", over=0, among="kept.*.7")
        await js.put("kept.bad.8", b"", over=0, among="kept.*.8")
        assert [m.subject async for m in js.scan("KEPT", "kept.>")] == ["kept.good.7", "kept.bad.8"]


async def test_a_scan_gives_every_message_in_order_over_pages(server: NatsServer) -> None:
    """Pages end after a number of messages, and after a number of bytes."""
    async with client(server) as js:
        for i in range(600):
            await js.put(f"kept.many.{i}", b"%d" % i)
        for i in range(5):
            await js.put(f"kept.large.{i}", bytes([i]) * (1 << 20))
        many = [m.data async for m in js.scan("KEPT", "kept.many.*")]
        assert many == [b"%d" % i for i in range(600)]
        large = [m.data async for m in js.scan("KEPT", "kept.large.*")]
        assert large == [bytes([i]) * (1 << 20) for i in range(5)]
        assert await js.count("KEPT", "kept.>") == 605
        assert [m async for m in js.scan("KEPT", "kept.none.*")] == []


async def test_work_leaves_the_queue_when_it_is_done_and_comes_back_when_it_is_not(
    server: NatsServer,
) -> None:
    async with client(server) as js:
        for name in ("a", "b"):
            await js.put(f"work.{name}", name.encode(), once=name)
            await js.put(f"work.{name}", name.encode(), once=name)
        first = await pulled(js)
        assert (first.subject, first.data, first.deliveries, first.behind) == ("work.a", b"a", 1, 1)
        await first.done()
        second = await pulled(js)
        assert (second.data, second.deliveries, second.behind) == (b"b", 1, 0)
        await second.again(0.05)
        third = await pulled(js)
        assert (third.data, third.deliveries) == (b"b", 2)
        await third.done()
        assert await js.count("QUEUE", "work.>") == 0


async def test_work_for_whoever_stopped_waiting_goes_to_somebody_else(server: NatsServer) -> None:
    async with client(server) as gone, client(server) as other:
        pulling = asyncio.create_task(gone.pull("QUEUE", "all"))
        await asyncio.sleep(0.05)  # the server has to know of it
        pulling.cancel()
        await asyncio.wait((pulling,))
        await other.put("work.a", b"a")
        async with asyncio.timeout(5):
            assert (await pulled(other)).data == b"a"


async def test_everything_survives_the_death_of_the_server(server: NatsServer) -> None:
    async with client(server) as js:
        await js.put("kept.a", b"kept")
        await js.put("work.a", b"work")
        pulling = asyncio.create_task(js.pull("QUEUE", "none"))
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(Unavailable):
            await pulling
        await server.start(server.port)
        found = await soon(js)
        assert found.data == b"kept"
        assert (await pulled(js)).data == b"work"


async def test_a_server_without_jetstream_says_so(nats_server: NatsServer) -> None:
    bus = await NatsBus.connect(nats_server.url, name="test")
    with pytest.raises(Unavailable, match="runs without JetStream"):
        await JetStream(bus).check()
    await bus.close()


async def test_a_bus_in_memory_has_no_jetstream(memory_broker: MemoryBroker) -> None:
    with pytest.raises(Unavailable, match="runs without JetStream"):
        await JetStream(memory_broker.client()).check()


@pytest.mark.parametrize(
    "reply", ["$JS.ACK.S.C.3.10.11.170.5", "$JS.ACK.domain.hash.S.C.3.10.11.170.5.random"]
)
def test_both_forms_of_a_reply_subject_are_read(memory_broker: MemoryBroker, reply: str) -> None:
    work = Work(memory_broker.client(), Delivery("s", b"", reply), 30.0)
    assert (work.deliveries, work.behind) == (3, 5)


async def test_a_cancellation_that_the_library_loses_ends_a_pull(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.11's wait_for does when the result comes at the same moment."""
    flushing = asyncio.Event()

    async def flush(_: Client, timeout: float) -> None:
        flushing.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(timeout)

    async with client(server) as js:
        with monkeypatch.context() as patched:
            patched.setattr(Client, "flush", flush)
            pulling = asyncio.create_task(js.pull("QUEUE", "all"))
            await flushing.wait()
            pulling.cancel()
            await asyncio.wait((pulling,), timeout=1)
        assert pulling.done()
        assert pulling.cancelled()

"""What only a real server can do to us."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from paceline.bus import nats
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts.errors import Unavailable
from tests.helpers import until


async def test_subscriptions_survive_a_killed_and_restarted_server(
    nats_server: NatsServer,
) -> None:
    port = nats_server.port
    near, far = [await NatsBus.connect(nats_server.url, name="test") for _ in range(2)]
    heard: list[bytes] = []
    await far.subscribe("a", lambda d: heard.append(d.data))
    os.kill(nats_server.pid, signal.SIGKILL)
    await until(lambda: not near.connected and not far.connected)
    async with asyncio.timeout(0.5):
        with pytest.raises(Unavailable, match="disconnected"):
            await near.request("a", b"", timeout=30)

    await nats_server.start(port)
    await until(lambda: near.connected and far.connected)
    # Its answer comes behind the subscriptions that far has made again.
    with pytest.raises(Unavailable, match="nobody"):
        await far.request("nobody", b"", timeout=5)
    await near.publish("a", b"again")
    await until(lambda: heard == [b"again"])
    await near.close()
    await far.close()


async def test_publishes_of_the_gap_arrive_in_order_once_the_server_is_back(nats_server: NatsServer) -> None:
    port = nats_server.port
    bus = await NatsBus.connect(nats_server.url, name="test")
    heard: list[bytes] = []
    await bus.subscribe("a", lambda d: heard.append(d.data))
    os.kill(nats_server.pid, signal.SIGKILL)
    await until(lambda: not bus.connected)
    sent = [str(i).encode() for i in range(1000)]
    for data in sent:
        await bus.publish("a", data)
    await nats_server.start(port)
    await until(lambda: len(heard) == 1000)
    assert heard == sent
    await bus.close()


async def test_close_does_not_wait_for_a_server_that_hangs(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_CLOSE_S", 0.1)
    bus = await NatsBus.connect(nats_server.url, name="test")
    await bus.subscribe("a", lambda d: None)
    os.kill(nats_server.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(2):
            await bus.close()
    finally:
        os.kill(nats_server.pid, signal.SIGCONT)


async def test_connect_waits_for_a_server_that_comes_up_later(nats_server: NatsServer) -> None:
    port = nats_server.port
    await nats_server.stop()
    connecting = asyncio.create_task(NatsBus.connect(nats_server.url, name="test"))
    await asyncio.sleep(0)
    await nats_server.start(port)
    bus = await connecting
    assert bus.connected
    await bus.close()


async def test_connect_names_the_server_it_cannot_find_and_not_the_token() -> None:
    with pytest.raises(Unavailable, match=r"^no NATS server at 127\.0\.0\.1:1 within 0\.1 s"):
        await NatsBus.connect("nats://secret@127.0.0.1:1", name="test", timeout=0.1)


async def test_a_wrong_token_fails_at_once(nats_server: NatsServer) -> None:
    async with asyncio.timeout(2):
        with pytest.raises(Unavailable, match="refuses this client"):
            await NatsBus.connect(f"nats://wrong@127.0.0.1:{nats_server.port}", name="test")


async def test_messages_beyond_the_pending_limit_are_dropped_and_counted(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_PENDING_MESSAGES", 1)
    bus = await NatsBus.connect(nats_server.url, name="test")
    heard: list[bytes] = []
    await bus.subscribe("a", lambda d: heard.append(d.data))
    for _ in range(500):
        await bus.publish("a", b"")
    await until(lambda: len(heard) + bus.dropped == 500)
    assert bus.dropped > 0
    assert bus.connected
    await bus.close()


@asynccontextmanager
async def refusing_server(complaint: bytes) -> AsyncIterator[int]:
    """Greets a client as NATS does, then sends it an error for which clients have to leave."""
    writers = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b'INFO {"version":"2.15.1","max_payload":1024,"headers":true}\r\n')
        while (await reader.readline()) != b"PING\r\n":
            continue
        writer.write(b"PONG\r\n")
        await writer.drain()
        writer.write(b"-ERR '" + complaint + b"'\r\n")

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        for writer in writers:
            writer.close()
        server.close()
        await server.wait_closed()


async def test_a_client_that_is_shut_out_for_good_says_so() -> None:
    closed = asyncio.Event()
    async with refusing_server(b"Maximum Connections Exceeded") as port:
        bus = await NatsBus.connect(f"nats://127.0.0.1:{port}", name="test", on_closed=closed.set)
        async with asyncio.timeout(5):
            await closed.wait()
        assert not bus.connected
        await bus.close()

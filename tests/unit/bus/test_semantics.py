"""What the interface promises, on the server and in memory alike."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from paceline.bus.interface import Bus, Delivery, Subscription
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts.errors import InvalidRequest, Unavailable
from tests.helpers import until

Connect: TypeAlias = Callable[[], Awaitable[Bus]]


@pytest.fixture(params=["memory", "nats"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes clients of one bus and closes them."""
    async with AsyncExitStack() as exits:
        broker, server = MemoryBroker(), NatsServer()
        if request.param == "nats":
            await server.start()
            exits.push_async_callback(server.stop)

        async def make() -> Bus:
            on_server = request.param == "nats"
            bus = await NatsBus.connect(server.url, name="test") if on_server else broker.client()
            exits.push_async_callback(bus.close)
            return bus

        yield make


async def listen(bus: Bus, subject: str, into: list[tuple[str, bytes]]) -> Subscription:
    """Notes the subject that was subscribed to beside each message."""
    return await bus.subscribe(subject, lambda d: into.append((f"{subject} <- {d.subject}", d.data)))


async def answering(bus: Bus, subject: str) -> None:
    """Answers each request with its own payload."""
    tasks = set()

    def handle(delivery: Delivery) -> None:
        task = asyncio.create_task(bus.publish(delivery.reply, delivery.data, headers=delivery.headers))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await bus.subscribe(subject, handle)


async def test_each_matching_subscription_gets_each_message_in_order(connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    heard: dict[str, list[tuple[str, bytes]]] = {"a.b": [], "a.*": [], ">": []}
    for pattern, messages in heard.items():
        await listen(receiver, pattern, messages)
    sent = [str(i).encode() for i in range(100)]
    for data in sent:
        await sender.publish("a.b", data)
    await until(lambda: all(len(messages) == 100 for messages in heard.values()))
    assert heard == {pattern: [(f"{pattern} <- a.b", data) for data in sent] for pattern in heard}


async def test_wildcards_match_as_in_nats(connect: Connect) -> None:
    bus = await connect()
    heard: list[tuple[str, bytes]] = []
    for pattern in ("a.>", "a.*", "a.*.c", "*", "*.b"):
        await listen(bus, pattern, heard)
    for subject in ("a", "a.b", "a.b.c", "b.b.c", "end"):
        await bus.publish(subject, b"")
    await until(lambda: len(heard) >= 7)
    assert sorted(where for where, _ in heard) == [
        "* <- a",
        "* <- end",
        "*.b <- a.b",
        "a.* <- a.b",
        "a.*.c <- a.b.c",
        "a.> <- a.b",
        "a.> <- a.b.c",
    ]


async def test_a_request_gets_the_first_answer_and_its_headers(connect: Connect) -> None:
    client, worker = await connect(), await connect()
    await answering(worker, "echo")
    answer = await client.request(
        "echo", b"x" * 100_000, timeout=5, headers={"traceparent": "00-1", "k": "ä"}
    )
    assert (answer.data, dict(answer.headers)) == (b"x" * 100_000, {"traceparent": "00-1", "k": "ä"})


async def test_a_subscription_is_known_to_everybody_when_subscribe_returns(connect: Connect) -> None:
    client = await connect()
    for i in range(30):
        worker = await connect()
        await answering(worker, f"echo.{i}")
        await client.request(f"echo.{i}", b"", timeout=5)


async def test_a_request_to_nobody_fails_at_once(connect: Connect) -> None:
    bus = await connect()
    async with asyncio.timeout(1):
        with pytest.raises(Unavailable, match="nobody listens on gone"):
            await bus.request("gone", b"", timeout=30)


async def test_a_request_that_nobody_answers_times_out(connect: Connect) -> None:
    bus = await connect()
    await bus.subscribe("silent", lambda d: None)
    with pytest.raises(TimeoutError):
        await bus.request("silent", b"", timeout=0.05)


async def test_more_than_max_payload_is_refused_before_it_is_sent(connect: Connect) -> None:
    bus = await connect()
    with pytest.raises(InvalidRequest, match=str(bus.max_payload)):
        await bus.publish("a", bytes(bus.max_payload + 1))
    await answering(bus, "echo")
    whole = bytes(bus.max_payload)
    assert (await bus.request("echo", whole, timeout=10)).data == whole


async def test_an_unsubscribed_handler_is_never_called_again(connect: Connect) -> None:
    bus = await connect()
    heard: list[bytes] = []
    last = asyncio.Event()
    subscription = await bus.subscribe("a", lambda d: heard.append(d.data))
    await bus.publish("a", b"1")
    await until(lambda: heard == [b"1"])
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    await bus.subscribe("a", lambda d: last.set())
    await bus.publish("a", b"2")
    await last.wait()
    assert heard == [b"1"]


async def test_a_handler_that_raises_loses_only_its_own_message(connect: Connect) -> None:
    bus = await connect()
    heard: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        if delivery.data == b"bad":
            raise ValueError("no such message")
        heard.append(delivery.data)

    await bus.subscribe("a", handle)
    for data in (b"1", b"bad", b"2"):
        await bus.publish("a", data)
    await until(lambda: heard == [b"1", b"2"])


async def test_close_delivers_what_was_received_and_sends_what_was_published(connect: Connect) -> None:
    near, far = await connect(), await connect()
    heard: list[bytes] = []
    await far.subscribe("a", lambda d: heard.append(d.data))
    sent = [str(i).encode() for i in range(1000)]
    for data in sent:
        await near.publish("a", data)
    await near.close()
    await far.close()
    assert heard == sent
    assert not near.connected
    with pytest.raises(Unavailable):
        await near.publish("a", b"late")

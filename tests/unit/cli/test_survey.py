"""What `paceline status` and the health check learn from the mesh."""

import asyncio

import pytest

from paceline.bus.interface import Bus, Delivery
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.bus.service import MicroService
from paceline.cli.health import check
from paceline.cli.survey import Row, hit_rate, survey
from paceline.contracts import subjects
from paceline.contracts.messages import Ack, Drain, Load, Role
from paceline.runtime.identity import new_identity


async def serve(bus: Bus, role: Role, worker: str, load: Load) -> MicroService:
    async def drain(_message: Drain) -> Ack:
        return Ack()

    api = MicroService(
        bus,
        new_identity(role, worker),
        description="a test",
        metadata={"model": "m", "engine": "cpu", "kv_dtype": "bfloat16"},
        load=lambda: load,
    )
    api.serve(subjects.DRAIN, drain)
    await api.start()
    return api


async def test_rows_are_what_the_services_say() -> None:
    broker = MemoryBroker()
    prefill = await serve(
        broker.client(),
        "prefill",
        "prefill-0",
        Load(
            running=1,
            waiting=2,
            pages_used=3,
            pages_cached=4,
            pages_total=5,
            tokens_per_s=6.5,
            counters={"prompt_tokens": 400, "cached_tokens": 100},
        ),
    )
    prefill.state = "ready"
    gateway = await serve(broker.client(), "gateway", "gateway-0", Load())

    rows = await survey(broker.client(), {"prefill-0", "gateway-0"})
    assert rows == [
        Row(
            service="gateway",
            worker="gateway-0",
            state="starting",
            model="m",
            engine="cpu",
            kv_dtype="bfloat16",
            running=0,
            waiting=0,
            pages_used=0,
            pages_cached=0,
            pages_total=0,
            hit_rate=None,
            tokens_per_s=0.0,
        ),
        Row(
            service="prefill",
            worker="prefill-0",
            state="ready",
            model="m",
            engine="cpu",
            kv_dtype="bfloat16",
            running=1,
            waiting=2,
            pages_used=3,
            pages_cached=4,
            pages_total=5,
            hit_rate=0.25,
            tokens_per_s=6.5,
        ),
    ]
    await prefill.close()
    await gateway.close()


async def test_other_micro_services_on_the_server_are_left_out() -> None:
    broker = MemoryBroker()
    stranger, ours = broker.client(), broker.client()
    answered: list[asyncio.Task[None]] = []

    def answer(delivery: Delivery) -> None:
        reply = b'{"type":"io.nats.micro.v1.stats_response","name":"stranger","id":"x"}'
        answered.append(asyncio.create_task(stranger.publish(delivery.reply, reply)))

    await stranger.subscribe("$SRV.STATS", answer)
    api = await serve(ours, "kvstore", "kvstore-0", Load())
    rows = await survey(broker.client(), ())
    assert [row.worker for row in rows] == ["kvstore-0"]
    assert len(answered) == 1
    await api.close()


@pytest.mark.parametrize(
    ("counters", "rate"),
    [
        ({"prompt_tokens": 200, "cached_tokens": 50}, 0.25),
        ({"hits": 3, "misses": 1}, 0.75),
        ({"hits": 0, "misses": 0}, None),
        ({}, None),
    ],
)
def test_hit_rate(counters: dict[str, int], rate: float | None) -> None:
    assert hit_rate(counters) == rate


async def test_a_container_is_healthy_once_its_service_is_ready() -> None:
    server = NatsServer()
    url = await server.start()
    assert not await check(url, "decode", "decode-0")
    bus = await NatsBus.connect(url, name="test")
    api = await serve(bus, "decode", "decode-0", Load())
    assert not await check(url, "decode", "decode-0")
    api.state = "ready"
    assert await check(url, "decode", "decode-0")
    assert not await check(url, "decode", "decode-1")
    await api.close()
    await bus.close()
    await server.stop()

"""Endpoints, their drain, and what a worker says under $SRV."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from paceline.bus.identity import Identity
from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.rpc import call
from paceline.bus.server import NatsServer
from paceline.bus.service import MicroService
from paceline.contracts import errors, subjects
from paceline.contracts.messages import Ack, Cancel, Confirm, Drain, Load
from paceline.telemetry import traces
from tests.helpers import settle, until
from tests.unit.bus import schemas

OWN = Identity("decode", "w1", "5eed", "node1", 4711, 1767225600.25)
CANCEL = Cancel(request_id="r", attempt=1)


class Worker:
    """A service whose `cancel` does what a test tells it to."""

    def __init__(self, bus: Bus) -> None:
        self.load = Load()
        self.running = 0
        self.go_on = asyncio.Event()
        self.fail_with: Exception | None = None
        self.api = MicroService(
            bus, OWN, description="under test", metadata={"model": "tiny"}, load=lambda: self.load
        )
        self.api.serve(subjects.CANCEL, self.cancel)
        self.api.serve(subjects.DRAIN, self.drain)

    async def cancel(self, message: Cancel) -> Ack:
        self.running += 1
        await self.go_on.wait()
        if self.fail_with:
            raise self.fail_with
        return Ack()

    async def drain(self, message: Drain) -> Ack:
        return Ack()


@pytest.fixture
def bus(memory_broker: MemoryBroker) -> Bus:
    return memory_broker.client()


@pytest.fixture
async def worker(memory_broker: MemoryBroker) -> AsyncIterator[Worker]:
    worker = Worker(memory_broker.client())
    await worker.api.start()
    yield worker
    await worker.api.close()


async def ask(bus: Bus, subject: str, data: bytes = b"") -> Any:
    return orjson.loads((await bus.request(subject, data, timeout=5)).data)


async def test_requests_of_one_endpoint_run_at_the_same_time(bus: Bus, worker: Worker) -> None:
    calls = [asyncio.create_task(call(bus, subjects.CANCEL, "decode", "w1", CANCEL)) for _ in range(4)]
    await until(lambda: worker.running == 4)
    worker.go_on.set()
    assert await asyncio.gather(*calls) == [Ack()] * 4


async def test_drain_refuses_new_requests_and_finishes_those_that_run(bus: Bus, worker: Worker) -> None:
    running = asyncio.create_task(call(bus, subjects.CANCEL, "decode", "w1", CANCEL))
    await until(lambda: worker.running == 1)
    draining = asyncio.create_task(worker.api.drain())
    await settle()
    with pytest.raises(errors.Unavailable, match="nobody listens"):
        await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    assert (await ask(bus, "$SRV.PING.decode.w1"))["id"] == "w1"
    assert not draining.done()
    worker.go_on.set()
    assert await running == Ack()
    await draining


async def test_close_tells_callers_of_running_requests(bus: Bus, worker: Worker) -> None:
    running = asyncio.create_task(call(bus, subjects.CANCEL, "decode", "w1", CANCEL, timeout=30))
    await until(lambda: worker.running == 1)
    await worker.api.close()
    with pytest.raises(errors.Unavailable, match="the worker is leaving"):
        await running


async def test_endpoints_come_before_start(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="confirm"):
        worker.api.serve(subjects.CONFIRM, lambda message: asyncio.sleep(0, Ack()))


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("no"),
        errors.ContextTooLong("no"),
        errors.ModelNotFound("no"),
        errors.Busy("no", retry_after_s=2.5),
        errors.Unavailable("no"),
        errors.WorkerLost("no"),
        errors.Cancelled("no"),
        errors.IntegrityError("no"),
        errors.ProtocolError("no"),
        errors.InternalError("no"),
    ],
    ids=lambda e: e.code,
)
async def test_an_error_arrives_as_the_class_it_was_raised_as(
    bus: Bus, worker: Worker, error: errors.PacelineError
) -> None:
    worker.fail_with = error
    worker.go_on.set()
    with pytest.raises(errors.PacelineError) as raised:
        await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    assert (type(raised.value), raised.value.message) == (type(error), "no")
    assert getattr(raised.value, "retry_after_s", None) == getattr(error, "retry_after_s", None)


async def test_a_bug_is_an_internal_error_that_reveals_no_values(bus: Bus, worker: Worker) -> None:
    worker.fail_with = ValueError("the tenant's secret")
    worker.go_on.set()
    with pytest.raises(errors.InternalError, match=r"^ValueError in cancel$"):
        await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{}", b'{"type":"drain"}', b'{"type":"cancel","request_id":1}']
)
async def test_bytes_that_are_no_request_are_refused_with_headers_for_tools(
    bus: Bus, worker: Worker, data: bytes
) -> None:
    answer = await bus.request("paceline.decode.w1.cancel", data, timeout=5)
    reply = orjson.loads(answer.data)
    assert (reply["type"], reply["code"]) == ("refused", "protocol")
    assert answer.headers["Nats-Service-Error-Code"] == "500"
    assert answer.headers["Nats-Service-Error"].startswith("protocol: ")
    assert answer.headers["Nats-Service-Error"].isprintable()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"type":"drain"}'])
async def test_an_operator_may_leave_a_message_of_defaults_out(bus: Bus, worker: Worker, data: bytes) -> None:
    assert await ask(bus, "paceline.decode.w1.drain", data) == {"type": "ack", "v": 2}


async def test_no_answer_in_time_is_unavailable(bus: Bus, worker: Worker) -> None:
    with pytest.raises(
        errors.Unavailable, match=r"no answer from paceline\.decode\.w1\.cancel within 0\.05 s"
    ):
        await call(bus, subjects.CANCEL, "decode", "w1", CANCEL, timeout=0.05)


async def test_an_answer_of_another_kind_is_a_protocol_error(bus: Bus) -> None:
    replies: list[str] = []
    await bus.subscribe("paceline.decode.w2.confirm", lambda d: replies.append(d.reply))
    confirming = asyncio.create_task(
        call(bus, subjects.CONFIRM, "decode", "w2", Confirm(request_id="r", attempt=1))
    )
    await until(lambda: bool(replies))
    await bus.publish(replies[0], b'{"type":"lease","v":2}')
    with pytest.raises(errors.ProtocolError):
        await confirming


async def test_a_request_continues_the_trace_of_its_caller(
    bus: Bus, worker: Worker, spans: InMemorySpanExporter
) -> None:
    worker.go_on.set()
    with traces.tracer().start_as_current_span("caller"):
        await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
        worker.fail_with = errors.Busy("full")
        with pytest.raises(errors.Busy):
            await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    taken, refused, caller = spans.get_finished_spans()
    for span in (taken, refused):
        assert (span.name, span.kind) == ("process paceline.decode.cancel", SpanKind.CONSUMER)
        assert span.parent is not None
        assert span.parent.span_id == caller.context.span_id
        assert span.attributes is not None
        assert span.attributes["messaging.destination.name"] == "paceline.decode.w1.cancel"
    assert (taken.status.is_ok, refused.status.is_ok) == (True, False)
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "busy"


async def test_a_request_without_a_trace_makes_no_span(
    bus: Bus, worker: Worker, spans: InMemorySpanExporter
) -> None:
    worker.go_on.set()
    await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("address", ["", ".decode", ".decode.w1"])
@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
async def test_srv_replies_are_valid_at_every_level(
    bus: Bus, worker: Worker, verb: str, address: str
) -> None:
    reply = await ask(bus, f"$SRV.{verb}{address}")
    schemas.validate(reply, getattr(schemas, verb))
    assert (reply["name"], reply["id"]) == ("decode", "w1")
    assert reply["metadata"] == {"incarnation": "5eed", "host": "node1", "pid": "4711", "model": "tiny"}


@pytest.mark.parametrize("address", [".prefill", ".decode.w2"])
async def test_srv_requests_to_others_are_not_answered(bus: Bus, worker: Worker, address: str) -> None:
    with pytest.raises(errors.Unavailable, match="nobody listens"):
        await bus.request(f"$SRV.PING{address}", b"", timeout=5)


async def test_info_describes_the_service_and_each_endpoint(bus: Bus, worker: Worker) -> None:
    info = await ask(bus, "$SRV.INFO")
    assert info["description"] == "under test"
    assert info["endpoints"][0] == {
        "name": "cancel",
        "subject": "paceline.decode.w1.cancel",
        "queue_group": "",
        "metadata": {"description": "forget a request and free what it holds"},
    }


async def test_stats_count_requests_and_carry_the_load_of_now(bus: Bus, worker: Worker) -> None:
    worker.go_on.set()
    await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    worker.fail_with = errors.Busy("full")
    for _ in range(2):
        with pytest.raises(errors.Busy):
            await call(bus, subjects.CANCEL, "decode", "w1", CANCEL)
    worker.load = Load(running=7, counters={"hits": 3})
    worker.api.state = "draining"
    stats = await ask(bus, "$SRV.STATS.decode.w1")
    cancel, drain = stats["endpoints"]
    assert (cancel["num_requests"], cancel["num_errors"], cancel["last_error"]) == (3, 2, "busy: full")
    assert cancel["average_processing_time"] == cancel["processing_time"] // 3 > 0
    assert (drain["num_requests"], drain["last_error"], drain["average_processing_time"]) == (0, "", 0)
    assert cancel["data"] == drain["data"]
    assert {k: cancel["data"][k] for k in ("state", "running", "counters")} == {
        "state": "draining",
        "running": 7,
        "counters": {"hits": 3},
    }
    assert stats["started"] == "2026-01-01T00:00:00.250000Z"


async def test_a_server_carries_all_of_it(nats_server: NatsServer) -> None:
    near, far = [await NatsBus.connect(nats_server.url, name="test") for _ in range(2)]
    worker = Worker(far)
    await worker.api.start()
    schemas.validate(await ask(near, "$SRV.STATS.decode.w1"), schemas.STATS)
    calls = [asyncio.create_task(call(near, subjects.CANCEL, "decode", "w1", CANCEL)) for _ in range(50)]
    await until(lambda: worker.running == 50)
    draining = asyncio.create_task(worker.api.drain())
    await settle()
    # Its answer comes behind the end of far's subscriptions.
    with pytest.raises(errors.Unavailable, match="nobody"):
        await far.request("nobody", b"", timeout=5)
    with pytest.raises(errors.Unavailable, match="nobody listens"):
        await call(near, subjects.CANCEL, "decode", "w1", CANCEL)
    worker.go_on.set()
    assert await asyncio.gather(*calls) == [Ack()] * 50
    await draining
    await worker.api.close()
    await near.close()
    await far.close()

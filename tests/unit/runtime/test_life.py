"""From the first beacon of a worker to its last."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from structlog.testing import capture_logs

from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.bus.rpc import call
from paceline.contracts import subjects
from paceline.contracts.errors import InvalidRequest, Unavailable
from paceline.contracts.messages import Ack, Beacon, Cancel, Drain, Load, ModelInfo
from paceline.runtime import beacons
from paceline.runtime.context import Context
from paceline.runtime.identity import new_identity
from paceline.runtime.life import live
from tests.helpers import settle, until

OWN = new_identity("decode", "w1")
MODEL = ModelInfo(
    name="tiny", context=64, fingerprint=b"p", kv_dtype="float32", page_bytes=4096, engine="fake"
)


class Toy:
    """A service that records its life and waits where a test wants it to."""

    def __init__(self, context: Context) -> None:
        self.calls: list[str] = []
        self.started, self.drained = asyncio.Event(), asyncio.Event()
        self.fail: Exception | None = None
        self.context = context
        context.api.serve(subjects.CANCEL, self.cancel)

    async def cancel(self, message: Cancel) -> Ack:
        self.calls.append("cancel")
        return Ack()

    async def start(self) -> None:
        self.calls.append("start")
        await self.started.wait()
        if self.fail:
            raise self.fail

    def load(self) -> Load:
        return Load(running=3)

    def model(self) -> ModelInfo | None:
        return MODEL if self.started.is_set() else None

    async def drain(self) -> None:
        self.calls.append("drain")
        await self.drained.wait()
        if self.fail:
            raise self.fail

    async def close(self) -> None:
        self.calls.append("close")


class Watched:
    """A toy's life on a memory bus, and the beacons that others hear."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.bus: Bus = broker.client()
        self.leave = asyncio.Event()
        self.beacons: list[Beacon] = []
        self.toys: list[Toy] = []
        self._broker = broker

    async def begin(self, drain_s: float = 5.0) -> None:
        await self.bus.subscribe(
            "paceline.load.*.*", lambda d: self.beacons.append(subjects.decode_beacon(d.data))
        )
        self.task = asyncio.create_task(
            live(OWN, self._broker.client(), "a toy", self.build, self.leave, drain_s=drain_s)
        )
        await until(lambda: bool(self.toys) and self.toy.calls == ["start"])

    async def begin_ready(self, drain_s: float = 5.0) -> None:
        await self.begin(drain_s)
        self.toy.started.set()
        await self.state("ready")

    async def state(self, state: str) -> None:
        await until(lambda: bool(self.beacons) and self.beacons[-1].state == state)

    def build(self, context: Context) -> Toy:
        self.toys.append(Toy(context))
        return self.toy

    @property
    def toy(self) -> Toy:
        return self.toys[0]

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys(b.state for b in self.beacons))


@pytest.fixture
async def life(memory_broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(beacons, "_INTERVAL_S", 0.01)
    watched = Watched(memory_broker)
    yield watched
    assert watched.task.done()


async def test_beacons_tell_the_whole_life_and_what_the_worker_holds(life: Watched) -> None:
    await life.begin()
    await life.state("starting")
    assert life.beacons[-1].model is None
    life.toy.started.set()
    await life.state("ready")
    assert life.beacons[-1] == Beacon(
        role="decode",
        worker="w1",
        incarnation=OWN.incarnation,
        host=OWN.host,
        pid=OWN.pid,
        state="ready",
        started=OWN.started,
        load=Load(running=3),
        model=MODEL,
    )
    info = orjson.loads((await life.bus.request("$SRV.INFO.decode.w1", b"", timeout=5)).data)
    assert (info["description"], info["metadata"]["model"]) == ("a toy", "tiny")
    assert info["metadata"]["kv_dtype"] == MODEL.kv_dtype
    life.leave.set()
    await life.state("draining")
    before = len(life.beacons)
    await until(lambda: len(life.beacons) > before + 2)
    life.toy.drained.set()
    await life.task
    await settle()
    assert life.states == ["starting", "ready", "draining", "gone"]
    assert life.beacons[-1].state == "gone"
    assert life.toy.calls == ["start", "drain", "close"]


async def test_a_drain_request_is_answered_and_running_work_can_still_be_cancelled(life: Watched) -> None:
    await life.begin_ready()
    assert await call(life.bus, subjects.DRAIN, "decode", "w1", Drain()) == Ack()
    await life.state("draining")
    assert await call(life.bus, subjects.CANCEL, "decode", "w1", Cancel(request_id="r", attempt=1)) == Ack()
    life.toy.drained.set()
    await life.task
    assert life.toy.calls == ["start", "drain", "cancel", "close"]
    with pytest.raises(Unavailable):
        await call(life.bus, subjects.DRAIN, "decode", "w1", Drain())


async def test_a_drain_that_takes_too_long_is_given_up(life: Watched) -> None:
    await life.begin_ready(drain_s=0.05)
    life.leave.set()
    with capture_logs() as lines:
        await life.task
    assert "drain_gave_up" in [line["event"] for line in lines]
    assert life.toy.calls == ["start", "drain", "close"]


async def test_a_drain_that_fails_still_closes(life: Watched) -> None:
    await life.begin_ready()
    life.toy.fail = ValueError("broken")
    life.toy.drained.set()
    life.leave.set()
    with capture_logs() as lines:
        await life.task
    assert "drain_failed" in [line["event"] for line in lines]
    assert life.toy.calls[-1] == "close"


async def test_a_start_that_fails_closes_says_gone_and_raises(life: Watched) -> None:
    await life.begin()
    life.toy.fail = InvalidRequest("no such model")
    life.toy.started.set()
    with pytest.raises(InvalidRequest, match="no such model"):
        await life.task
    await settle()
    assert life.toy.calls == ["start", "close"]
    assert life.states == ["starting", "gone"]


async def test_leaving_while_starting_cancels_the_start(life: Watched) -> None:
    await life.begin()
    life.leave.set()
    await life.task
    await settle()
    assert life.toy.calls == ["start", "close"]
    assert life.states == ["starting", "gone"]


async def test_tasks_of_the_service_end_after_it_has_closed(life: Watched) -> None:
    await life.begin_ready()
    background = life.toy.context.tasks.spawn(asyncio.Event().wait(), name="background")
    life.toy.drained.set()
    life.leave.set()
    await life.task
    assert background.cancelled()


async def test_a_worker_that_cannot_beat_leaves(life: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    await life.begin_ready()
    life.toy.drained.set()
    monkeypatch.setattr(life.toy, "load", lambda: 1 / 0)
    with capture_logs() as lines, pytest.raises(ZeroDivisionError):
        await life.task
    assert "task_failed" in [line["event"] for line in lines]
    assert life.toy.calls[-1] == "close"

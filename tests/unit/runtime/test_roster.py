"""Who counts as alive, and what counts as a death."""

import asyncio
import os
import signal

import pytest

from paceline.bus.interface import Bus
from paceline.bus.memory import MemoryBroker
from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.messages import Beacon, Load
from paceline.runtime import roster
from paceline.runtime.roster import Hearing, Roster, Sightings
from tests.helpers import until


def beacon(worker: str = "w1", incarnation: str = "a", started: float = 1.0, **fields: object) -> Beacon:
    values = {"role": "decode", "state": "ready", "host": "h", "pid": 1, "load": Load(), **fields}
    return Beacon(worker=worker, incarnation=incarnation, started=started, **values)  # type: ignore[arg-type]


def ticking(sightings: Sightings, start: float, end: float) -> list[Beacon]:
    """Expire as often as the roster does, up to and including `end`."""
    lost = []
    for i in range(round((end - start) / 0.25) + 1):
        lost += sightings.expire(start + i * 0.25)
    return lost


def test_a_worker_is_lost_once_after_three_seconds_of_silence() -> None:
    sightings = Sightings()
    assert sightings.observe(beacon(), 10.0) is None
    assert ticking(sightings, 10.0, 13.0) == []
    assert [b.worker for b in sightings.alive("decode")] == ["w1"]
    assert sightings.expire(13.25) == [beacon()]
    assert sightings.expire(13.5) == []
    assert sightings.alive("decode") == []
    assert sightings.get("decode", "w1") is None


def test_each_beacon_restarts_the_clock_of_its_worker_alone() -> None:
    sightings = Sightings()
    sightings.observe(beacon("w1"), 0.0)
    sightings.observe(beacon("w2"), 0.0)
    ticking(sightings, 0.0, 2.0)
    sightings.observe(beacon("w1", load=Load(running=2)), 2.0)
    assert ticking(sightings, 2.25, 4.75) == [beacon("w2")]
    assert sightings.alive("decode") == [beacon("w1", load=Load(running=2))]


def test_another_incarnation_ends_the_life_before_it() -> None:
    sightings = Sightings()
    sightings.observe(beacon(incarnation="a", started=1.0), 0.0)
    assert sightings.observe(beacon(incarnation="b", started=2.0), 0.5) == beacon(
        incarnation="a", started=1.0
    )
    assert sightings.observe(beacon(incarnation="b", started=2.0), 1.0) is None
    assert sightings.get("decode", "w1") == beacon(incarnation="b", started=2.0)


def test_late_beacons_of_an_ended_life_change_nothing() -> None:
    sightings = Sightings()
    sightings.observe(beacon(incarnation="b", started=2.0), 0.0)
    for state in ("ready", "gone"):
        assert sightings.observe(beacon(incarnation="a", started=1.0, state=state), 0.5) is None
    assert sightings.get("decode", "w1") == beacon(incarnation="b", started=2.0)


def test_gone_ends_a_life_at_once_and_once() -> None:
    sightings = Sightings()
    sightings.observe(beacon(), 0.0)
    assert sightings.observe(beacon(state="gone"), 0.5) == beacon()
    assert sightings.observe(beacon(state="gone"), 0.5) is None
    assert ticking(sightings, 0.5, 10.0) == []


def test_a_silent_worker_that_beats_again_is_alive_and_can_be_lost_again() -> None:
    sightings = Sightings()
    sightings.observe(beacon(), 0.0)
    assert ticking(sightings, 0.0, 3.25) == [beacon()]
    sightings.observe(beacon(), 3.5)
    assert sightings.alive("decode") == [beacon()]
    assert ticking(sightings, 3.5, 6.75) == [beacon()]


def test_only_ready_and_draining_workers_of_the_role_are_alive_by_id() -> None:
    sightings = Sightings()
    for worker, state in (("w3", "draining"), ("w1", "ready"), ("w2", "starting")):
        sightings.observe(beacon(worker, state=state), 0.0)
    sightings.observe(beacon("w0", role="prefill"), 0.0)
    assert [b.worker for b in sightings.alive("decode")] == ["w1", "w3"]
    starting = sightings.get("decode", "w2")
    assert starting is not None
    assert starting.state == "starting"


def test_our_own_stall_kills_nobody() -> None:
    sightings = Sightings()
    sightings.observe(beacon("w1"), 0.0)
    sightings.expire(0.0)
    assert sightings.expire(60.0) == []
    assert ticking(sightings, 60.25, 63.0) == []
    assert sightings.expire(63.25) == [beacon("w1")]


def test_nobody_is_lost_while_we_are_deaf_and_clocks_restart_after() -> None:
    sightings = Sightings()
    sightings.observe(beacon(), 0.0)
    for i in range(40):
        assert sightings.expire(i * 0.25, deaf=True) == []
    assert ticking(sightings, 10.0, 12.75) == []
    assert sightings.expire(13.0) == [beacon()]


def test_silence_of_the_whole_bus_counts_from_the_last_word_to_the_next() -> None:
    hearing = Hearing()
    assert hearing.deaf_since(0.0, 0.0)
    hearing.heard(10.0)
    hearing.heard(10.75)
    assert not hearing.deaf_since(10.0, 11.5)
    assert hearing.deaf_since(11.75, 11.75)
    hearing.heard(14.0)
    assert hearing.deaf_since(13.9, 14.5)
    assert not hearing.deaf_since(14.1, 14.5)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules in a twentieth of the time."""
    monkeypatch.setattr(roster, "LOST_S", 0.15)
    monkeypatch.setattr(roster, "DEAF_S", 0.045)
    monkeypatch.setattr(roster, "_TICK_S", 0.01)


async def beat(bus: Bus, message: Beacon) -> None:
    await bus.publish(subjects.beacon(message.role, message.worker), encode(message))


async def test_the_roster_tells_of_each_loss_once_even_if_a_callback_fails(
    memory_broker: MemoryBroker, fast: None
) -> None:
    def fail(_: Beacon) -> None:
        raise ValueError("callback")

    lost: list[Beacon] = []
    watching, bus = Roster(), memory_broker.client()
    watching.on_lost(fail)
    watching.on_lost(lost.append)
    await watching.start(memory_broker.client())
    await beat(bus, beacon("w1", incarnation="a", started=1.0))
    await beat(bus, beacon("w2"))
    await beat(bus, beacon("w1", incarnation="b", started=2.0))
    await beat(bus, beacon("w2", state="gone"))
    await until(lambda: len(lost) == 3)
    assert [(b.worker, b.incarnation) for b in lost] == [("w1", "a"), ("w2", "a"), ("w1", "b")]
    await watching.close()


async def test_bytes_that_are_no_beacon_are_ignored(memory_broker: MemoryBroker) -> None:
    watching, bus = Roster(), memory_broker.client()
    await watching.start(memory_broker.client())
    await bus.publish(subjects.beacon("decode", "w1"), b"\xff")
    await beat(bus, beacon("w2"))
    await until(lambda: bool(watching.alive("decode")))
    assert [b.worker for b in watching.alive("decode")] == ["w2"]
    await watching.close()


async def test_a_server_that_hangs_or_dies_kills_no_worker(nats_server: NatsServer, fast: None) -> None:
    lost: list[Beacon] = []
    bus = await NatsBus.connect(nats_server.url, name="test")
    watching = Roster()
    watching.on_lost(lost.append)
    await watching.start(bus)
    await beat(bus, beacon())
    await until(lambda: bool(watching.alive("decode")))

    os.kill(nats_server.pid, signal.SIGSTOP)
    # Time is what is tested: ten lives of silence, in which the connection looks alive.
    await asyncio.sleep(1.5)
    assert (bus.connected, watching.deaf, lost) == (True, True, [])
    os.kill(nats_server.pid, signal.SIGCONT)
    await until(lambda: lost == [beacon()])
    await until(lambda: not watching.deaf)
    await beat(bus, beacon())
    await until(lambda: bool(watching.alive("decode")))
    lost.clear()
    os.kill(nats_server.pid, signal.SIGKILL)
    await until(lambda: not bus.connected)
    await asyncio.sleep(0.5)
    assert not lost
    await until(lambda: watching.deaf)
    await nats_server.start(nats_server.port)
    await until(lambda: lost == [beacon()])
    await watching.close()
    await bus.close()

"""When a run counts as ready."""

import asyncio
from pathlib import Path

from paceline.bus.memory import MemoryBroker
from paceline.cli.readiness import Readiness
from paceline.cli.supervisor import Child, Process
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.messages import Beacon, Load


class Life:
    """A process that runs until told otherwise."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def send_signal(self, signum: int, /) -> None:
        raise AssertionError(signum)

    async def wait(self) -> int:
        raise AssertionError


def child(name: str, pid: int) -> Child:
    async def launch() -> Process:
        raise AssertionError

    return Child(name, Path("unused.log"), launch, process=Life(pid))


def beacon(worker: str, pid: int, state: str) -> Beacon:
    return Beacon(
        role="decode",
        worker=worker,
        incarnation="i",
        host="h",
        pid=pid,
        state=state,  # type: ignore[arg-type]
        started=0.0,
        load=Load(),
    )


async def test_all_children_have_to_say_so_in_their_present_life() -> None:
    broker = MemoryBroker()
    first, second, last = child("decode-0", 10), child("decode-1", 11), child("decode-2", 12)
    ready: asyncio.Queue[str] = asyncio.Queue()
    readiness = Readiness([first, second, last], lambda c: ready.put_nowait(c.name))
    await readiness.start(broker.client())
    waiting = asyncio.create_task(readiness.wait())
    bus = broker.client()

    async def say(worker: str, pid: int, state: str) -> None:
        # On one subject, because only then the order is kept.
        await bus.publish(subjects.beacon("decode", "any"), encode(beacon(worker, pid, state)))

    await say("decode-0", 10, "starting")
    # The last words of a life before this one.
    await say("decode-0", 9, "ready")
    await say("stranger", 13, "ready")
    await say("decode-1", 11, "ready")
    await say("decode-1", 11, "ready")
    await say("decode-2", 12, "ready")
    assert [await ready.get() for _ in range(2)] == ["decode-1", "decode-2"]
    assert (first.ready, second.ready, last.ready) == (False, True, True)
    assert not waiting.done()
    await say("decode-0", 10, "ready")
    await waiting
    assert await ready.get() == "decode-0"


async def test_what_is_no_beacon_is_passed_over() -> None:
    broker = MemoryBroker()
    only = child("decode-0", 10)
    readiness = Readiness([only], lambda _: None)
    await readiness.start(broker.client())
    bus = broker.client()
    await bus.publish(subjects.beacon("decode", "any"), b"no beacon")
    await bus.publish(subjects.beacon("decode", "any"), encode(beacon("decode-0", 10, "ready")))
    await readiness.wait()
    assert only.ready

"""The main loop as a process: its signals, its exit codes, its one line of explanation."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from paceline.bus.nats import NatsBus
from paceline.bus.server import NatsServer
from paceline.contracts import subjects
from tests.helpers import until

pytestmark = pytest.mark.slow

TOY = Path(__file__).with_name("toy_service.py")


class Processes:
    """Starts toys on a server and hears their beacons."""

    def __init__(self, bus: NatsBus, url: str) -> None:
        self.bus = bus
        self.states: list[str] = []
        self._url = url
        self._running: list[Process] = []

    async def start(self, **environ: str) -> Process:
        env = {**os.environ, "PACELINE_NATS_URL": self._url, "PACELINE_WORKER": "w1", **environ}
        process = await asyncio.create_subprocess_exec(sys.executable, str(TOY), env=env, stderr=PIPE)
        self._running.append(process)
        return process

    async def start_ready(self, **environ: str) -> Process:
        process = await self.start(**environ)
        await self.state("ready")
        return process

    async def state(self, state: str) -> None:
        await until(lambda: self.states[-1:] == [state], timeout=20)

    async def stop(self) -> None:
        for process in self._running:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.fixture
async def toys(nats_server: NatsServer) -> AsyncIterator[Processes]:
    bus = await NatsBus.connect(nats_server.url, name="test")
    toys = Processes(bus, nats_server.url)
    await bus.subscribe(
        "paceline.load.drafter.w1", lambda d: toys.states.append(subjects.decode_beacon(d.data).state)
    )
    yield toys
    await toys.stop()
    await bus.close()


async def log_of(process: Process) -> list[dict[str, object]]:
    """The lines of an ended process."""
    _, stderr = await process.communicate()
    return [orjson.loads(line) for line in stderr.splitlines()]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_exits_with_0(toys: Processes, sig: signal.Signals) -> None:
    process = await toys.start_ready()
    process.send_signal(sig)
    assert await process.wait() == 0
    assert list(dict.fromkeys(toys.states)) == ["starting", "ready", "draining", "gone"]


async def test_an_operator_drains_a_worker_with_an_empty_request(toys: Processes) -> None:
    process = await toys.start_ready()
    answer = await toys.bus.request("paceline.drafter.w1.drain", b"", timeout=5)
    assert answer.data == b'{"type":"ack","v":2}'
    assert await process.wait() == 0


async def test_a_second_signal_ends_the_drain_at_once(toys: Processes) -> None:
    process = await toys.start_ready(TOY_DRAIN="60")
    process.send_signal(signal.SIGTERM)
    await toys.state("draining")
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


async def test_a_drain_ends_at_its_deadline(toys: Processes) -> None:
    process = await toys.start_ready(TOY_DRAIN="60", PACELINE_DRAIN_S="0.2")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert "drain_gave_up" in [line["event"] for line in await log_of(process)]
    assert toys.states[-1] == "gone"


async def test_a_start_that_can_never_succeed_says_why_in_one_line(toys: Processes) -> None:
    process = await toys.start(TOY_FAIL="no such model")
    assert await process.wait() == os.EX_CONFIG
    errors = [line for line in await log_of(process) if line["level"] == "error"]
    assert [(line["event"], line["error"], line["worker"]) for line in errors] == [
        ("service_failed", "no such model", "w1")
    ]


async def test_a_signal_during_the_start_ends_it(toys: Processes) -> None:
    process = await toys.start(TOY_START="60")
    await toys.state("starting")
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


async def test_a_signal_while_there_is_no_server_ends_the_wait(toys: Processes) -> None:
    process = await toys.start(PACELINE_NATS_URL="nats://127.0.0.1:1", PACELINE_LOG_LEVEL="debug")
    assert process.stderr is not None
    while b"bus_reconnect_failed" not in await process.stderr.readline():
        continue
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("variable", "value"),
    [("PACELINE_DRAIN_S", "soon"), ("PACELINE_LOG_FORMAT", "xml"), ("PACELINE_WORKER", "a.b")],
)
async def test_a_wrong_setting_is_named_and_says_that_a_restart_is_of_no_use(
    toys: Processes, variable: str, value: str
) -> None:
    process = await toys.start(**{variable: value})
    _, stderr = await process.communicate()
    assert process.returncode == os.EX_CONFIG
    assert stderr.decode().startswith("paceline drafter: ")
    assert value in stderr.decode()
    assert stderr.count(b"\n") == 1


async def test_workers_outlive_a_server_that_is_killed_and_restarted(
    toys: Processes, nats_server: NatsServer
) -> None:
    process = await toys.start_ready()
    os.kill(nats_server.pid, signal.SIGKILL)
    await until(lambda: not toys.bus.connected)
    toys.states.clear()
    began = time.monotonic()
    await nats_server.start(nats_server.port)
    await toys.state("ready")
    assert time.monotonic() - began < 5
    answer = await toys.bus.request("paceline.drafter.w1.drain", b"", timeout=5)
    assert answer.data == b'{"type":"ack","v":2}'
    assert await process.wait() == 0

"""What a client of a whole mesh sees."""

import asyncio
import errno
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import until
from tests.system.harness import Reply, paceline_up
from tests.system.tiny import Oracle

pytestmark = pytest.mark.slow

LONG = "The same long question about pacelines and headwinds, asked once more. " * 8


async def test_the_answer_is_that_of_a_single_loop_and_repeats_are_cached(
    tiny: Path, oracle: Oracle, tmp_path: Path
) -> None:
    async with paceline_up(tiny, tmp_path) as system:
        first = await system.ask(LONG, max_tokens=40)
        assert first.text == oracle.text(LONG, 40)
        assert (first.finish_reason, first.done, first.error) == ("length", True, None)
        assert first.usage["prompt_tokens"] == len(oracle.prompt(LONG))
        assert first.usage["completion_tokens"] == 40
        assert first.usage["prompt_tokens_details"] == {"cached_tokens": 0}
        second = await system.ask(LONG, max_tokens=40)
        assert second.text == first.text
        assert (
            second.usage["prompt_tokens_details"]["cached_tokens"]
            == (len(oracle.prompt(LONG)) - 1) // 64 * 64
        )
        short = await system.ask("hi", max_tokens=5)
        assert short.text == oracle.text("hi", 5)
        await system.idle()


async def test_unified_workers_give_the_same_answers(tiny: Path, oracle: Oracle, tmp_path: Path) -> None:
    async with paceline_up(tiny, tmp_path, "--unified", "--decode", "2") as system:
        assert not [name for name in system.pids() if name.startswith("prefill")]
        replies = await asyncio.gather(*(system.ask(f"{LONG} {i}", max_tokens=20) for i in range(6)))
        assert [r.text for r in replies] == [oracle.text(f"{LONG} {i}", 20) for i in range(6)]
        await system.idle()


async def test_two_hundred_mixed_requests_with_disconnects_leave_nothing_behind(
    tiny: Path, oracle: Oracle, tmp_path: Path
) -> None:
    chance = random.Random(5)
    async with paceline_up(tiny, tmp_path, "--prefill", "2", "--decode", "2", step_s=0.002) as system:

        async def one(i: int) -> None:
            content = f"{i % 40} " + LONG[: chance.choice((10, 300, 600))]
            limit = chance.choice((1, 8, 40))
            options: dict[str, Any] = {"temperature": chance.choice((0, 0.8)), "draft": chance.random() < 0.5}
            if chance.random() < 0.4:
                try:
                    async with asyncio.timeout(chance.uniform(0.0, 0.5)):
                        await system.ask(content, max_tokens=200)
                except TimeoutError:
                    pass
                return
            reply = await system.ask(content, max_tokens=limit, **options)
            assert (reply.status, reply.error, reply.done, reply.finish_reason) == (200, None, True, "length")
            if options["temperature"] == 0:
                assert reply.text == oracle.text(content, limit)

        gate = asyncio.Semaphore(24)

        async def gated(i: int) -> None:
            async with gate:
                await one(i)

        await asyncio.gather(*(gated(i) for i in range(200)))
        await system.idle()


async def test_a_disconnect_frees_both_legs_in_under_a_second(tiny: Path, tmp_path: Path) -> None:
    async with paceline_up(tiny, tmp_path, step_s=0.02) as system:
        for wait_for_text in (False, True):
            seen = asyncio.Event()

            def on_text(reply: Reply, seen: asyncio.Event = seen) -> None:
                if reply.text:
                    seen.set()

            ask = asyncio.create_task(system.ask(LONG, max_tokens=3000, on_text=on_text))
            await (seen.wait() if wait_for_text else asyncio.sleep(0))
            ask.cancel()
            await asyncio.wait([ask])
            # Beacons tell of it twice a second, so that the gauge is up to half a second late.
            await system.idle(timeout=1.5)


async def test_ctrl_c_lets_the_stream_end_and_leaves_with_status_0(
    tiny: Path, oracle: Oracle, tmp_path: Path
) -> None:
    async with paceline_up(tiny, tmp_path, step_s=0.02) as system:
        seen = asyncio.Event()
        ask = asyncio.create_task(system.ask(LONG, max_tokens=60, draft=False, on_text=lambda r: seen.set()))
        await seen.wait()
        system.process.send_signal(signal.SIGINT)
        reply = await ask
        assert (reply.text, reply.finish_reason, reply.done) == (oracle.text(LONG, 60), "length", True)
        assert await system.process.wait() == 0


async def test_kill_9_of_the_supervisor_leaves_no_process_port_or_file(tiny: Path, tmp_path: Path) -> None:
    async with paceline_up(tiny, tmp_path) as system:
        await system.ask(LONG)
        pids = system.pids()
        assert sorted(pids) == ["decode-0", "drafter-0", "gateway-0", "kvstore-0", "nats", "prefill-0"]
        system.process.kill()
        await system.process.wait()
        await until(lambda: not any(_alive(pid) for pid in pids.values()))
        await until(lambda: not list((tmp_path / "run").iterdir()))
        # A socket closes with the last thread of its process, moments after the process itself looks dead.
        await until(lambda: _refused(system.port))


def _refused(port: int) -> bool:
    """Asked by a connection of its own: one that was kept alive is reset, which says nothing of the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_non_loopback_bind_without_keys_is_refused(tiny: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PACELINE_HOST": "0.0.0.0",
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    command = [
        sys.executable,
        "-m",
        "paceline.cli",
        "up",
        "--model",
        str(tiny),
        "--port",
        "0",
        "--engine",
        "fake",
    ]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "PACELINE_API_KEYS" in result.stdout + result.stderr

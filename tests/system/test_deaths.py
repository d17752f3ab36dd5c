"""kill -9 of every process of the mesh in mid-stream: the answer goes on to the same text, and nothing stays behind."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.helpers import until
from tests.system.harness import Reply, System, paceline_up
from tests.system.tiny import Oracle

pytestmark = pytest.mark.slow

LONG = "What happens to a rider who leaves the line, and who closes the gap then? " * 20
TOKENS = 120


def after(characters: int) -> tuple[asyncio.Event, Callable[[Reply], None]]:
    """An event, and the callback that sets it once so much text has come."""
    reached = asyncio.Event()

    def watch(reply: Reply) -> None:
        if len(reply.text) >= characters:
            reached.set()

    return reached, watch


async def restarted(system: System, worker: str, pid: int) -> None:
    """Wait until another process has taken the worker's place."""
    await until(lambda: system.pids().get(worker, pid) != pid, timeout=15)
    await system.healthy()


@pytest.mark.parametrize("worker", ["decode-0", "prefill-0", "kvstore-0", "drafter-0", "nats"])
@pytest.mark.parametrize("moment", ["prefill", "decode"])
async def test_a_stream_survives(
    tiny: Path, oracle: Oracle, tmp_path: Path, worker: str, moment: str
) -> None:
    async with paceline_up(tiny, tmp_path, step_s=0.03) as system:
        reached, watch = after(20)
        ask = asyncio.create_task(system.ask(LONG, max_tokens=TOKENS, on_text=watch))
        if moment == "decode":
            await reached.wait()
        else:
            await asyncio.sleep(0.1)  # 1,500 prompt tokens take six steps
        pid = system.pids()[worker]
        system.kill(worker)
        reply = await ask
        assert (reply.status, reply.error, reply.finish_reason, reply.done) == (200, None, "length", True)
        assert reply.text == oracle.text(LONG, TOKENS)
        assert reply.usage["completion_tokens"] == TOKENS
        await restarted(system, worker, pid)
        again = await system.ask(LONG, max_tokens=20)
        assert again.text == oracle.text(LONG, 20)
        await system.idle()


async def test_workers_forget_the_requests_of_a_dead_gateway(
    tiny: Path, oracle: Oracle, tmp_path: Path
) -> None:
    async with paceline_up(tiny, tmp_path, step_s=0.03) as system:
        reached, watch = after(20)
        ask = asyncio.create_task(system.ask(LONG, max_tokens=4000, on_text=watch))
        await reached.wait()
        pid = system.pids()["gateway-0"]
        system.kill("gateway-0")
        with pytest.raises(aiohttp.ClientError):
            await ask
        await restarted(system, "gateway-0", pid)
        await system.idle()
        assert (await system.ask(LONG, max_tokens=20)).text == oracle.text(LONG, 20)


async def test_a_restarted_prefill_worker_finds_its_prefixes_in_the_kvstore(
    tiny: Path, oracle: Oracle, tmp_path: Path
) -> None:
    async with paceline_up(tiny, tmp_path) as system:
        await system.acquainted()
        full_pages = len(oracle.prompt(LONG)) // 64
        wanted = await system.stored() + full_pages
        await system.ask(LONG)
        async with asyncio.timeout(10):
            while await system.stored() < wanted:
                await asyncio.sleep(0.1)
        pid = system.pids()["prefill-0"]
        system.kill("prefill-0")
        await restarted(system, "prefill-0", pid)
        await until_prompts_run_on(system, "prefill-0")
        reply = await system.ask(LONG, max_tokens=20)
        assert reply.text == oracle.text(LONG, 20)
        assert reply.usage["paceline"]["cached"]["host"] == full_pages * 64


async def until_prompts_run_on(system: System, worker: str) -> None:
    """Until the gateway sends unrelated long prompts to `worker`, which it has to have heard of first."""
    async with asyncio.timeout(15):
        i = 0
        while (await system.ask(f"{i} {LONG[:400]}", max_tokens=2)).usage["paceline"]["workers"][
            "prompt"
        ] != worker:
            i += 1
            await asyncio.sleep(0.1)


async def test_several_streams_and_several_deaths(tiny: Path, oracle: Oracle, tmp_path: Path) -> None:
    async with paceline_up(tiny, tmp_path, "--decode", "2", "--prefill", "2", step_s=0.02) as system:
        asks = [asyncio.create_task(system.ask(f"{i} {LONG}", max_tokens=TOKENS)) for i in range(6)]
        for worker in ("decode-0", "prefill-1", "decode-1"):
            await asyncio.sleep(0.7)
            with contextlib.suppress(KeyError):  # it may be on its way back
                system.kill(worker)
        for i, reply in enumerate(await asyncio.gather(*asks)):
            assert (reply.status, reply.error, reply.done) == (200, None, True)
            assert reply.text == oracle.text(f"{i} {LONG}", TOKENS)
        await system.idle()

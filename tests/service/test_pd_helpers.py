"""What drafter and kvstore add to an answer: speed, and never another token."""

from pathlib import Path

import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens, Done
from paceline.engine.fake import FakeEngine
from paceline.engine.scheduler import Scheduler
from tests.helpers import until
from tests.workers import Mesh, make_work, mesh

PROMPT = [i % 490 + 1 for i in range(200)]
# Slow enough for proposals to arrive between steps, as with any real model.
STEP_S = 0.004


def greedy(count: int) -> list[int]:
    return FakeEngine().greedy(PROMPT, count)


async def acquainted(m: Mesh, role: str) -> None:
    await until(lambda: all(bool(s.context.roster.alive(role)) for s in m.workers))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.2}], ids=["greedy", "sampled"]
)
async def test_what_was_said_before_is_drafted_and_changes_no_token(
    memory_broker: MemoryBroker, tmp_path: Path, sampling: dict[str, float]
) -> None:
    async with mesh(memory_broker, tmp_path, drafter=True, step_s=STEP_S) as m:
        await acquainted(m, "drafter")
        plain = await m.finish(make_work(PROMPT, max_tokens=60, sampling=sampling), draft=False)
        assert isinstance(plain.end, Done)
        assert plain.end.drafted == 0
        first = await m.finish(make_work(PROMPT, max_tokens=60, sampling=sampling))
        again = await m.finish(make_work(PROMPT, max_tokens=60, sampling=sampling))
        assert plain.all() == first.all() == again.all()
        if not sampling:
            assert plain.all() == greedy(60)
        assert isinstance(again.end, Done)
        assert again.end.accepted >= 30
        assert again.end.steps < 40
        await m.idle()
        await until(lambda: m.drafter.load().leases == 0)


async def test_a_drafter_that_leaves_costs_nothing_but_speed(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, drafter=True, step_s=STEP_S) as m:
        await acquainted(m, "drafter")
        await m.finish(make_work(PROMPT, max_tokens=60))
        answer = await m.ask(make_work(PROMPT, max_tokens=60))
        await until(lambda: len(answer.tokens) > 3)
        await m.drafter.close()
        await until(lambda: answer.end is not None)
        assert answer.all() == greedy(60)
        assert (await m.finish(make_work(PROMPT, max_tokens=60))).all() == greedy(60)


def _forget_prefixes(scheduler: Scheduler) -> None:
    scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.available))


async def stored_then_forgotten(m: Mesh) -> None:
    """The kvstore has the prompt's three full pages, and no worker has."""
    await acquainted(m, "kvstore")
    await m.finish(make_work(PROMPT))
    await until(lambda: m.kvstore.load().pages_cached == 3)
    await until(lambda: m.prefill.store.unsaved == 0)
    await m.idle()
    for service in m.workers:
        await service.host.thread.call(_forget_prefixes)


@pytest.mark.parametrize("remote", [True, False], ids=["prefill", "unified"])
async def test_a_stored_prefix_is_reused_by_whoever_runs_the_prompt(
    memory_broker: MemoryBroker, tmp_path: Path, remote: bool
) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True) as m:
        await stored_then_forgotten(m)
        again = await m.finish(make_work(PROMPT), remote=remote)
        assert again.all() == greedy(8)
        assert again.started.cached == CachedTokens(host=192)
        await m.idle()
        await until(lambda: m.kvstore.load().leases == 0)


async def test_a_wrong_byte_in_the_kvstore_is_a_miss_and_is_dropped_there(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True) as m:
        await stored_then_forgotten(m)
        arena = m.kvstore._tier.arena
        assert arena is not None
        arena.pages[arena.pages.any(axis=1), 100] ^= 1
        again = await m.finish(make_work(PROMPT))
        assert again.all() == greedy(8)
        assert again.started.cached == CachedTokens()
        assert m.prefill.load().counters["store_damaged"] == 1
        assert m.kvstore.load().counters["damaged"] >= 1
        await m.idle()

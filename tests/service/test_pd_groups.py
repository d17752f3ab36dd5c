"""Prefill and decode workers whose engine has a layer that sees only a window or a chunk: its pages are handed over,
stored and reused as far as somebody sees them, and the answer is that of a single loop."""

import asyncio
from pathlib import Path

import pytest

from paceline.bus import rpc
from paceline.bus.memory import MemoryBroker
from paceline.contracts import subjects
from paceline.contracts.errors import ContextTooLong
from paceline.contracts.messages import CachedTokens, Cancel, Commit, Done, Failed
from paceline.decode.handoff import Handoff
from paceline.engine.fake import FakeEngine
from paceline.engine.scheduler import Scheduler
from paceline.model.config import Chunk, Span, Window
from tests.helpers import until
from tests.workers import Mesh, make_work, mesh

spans = pytest.mark.parametrize("span", [Window(100), Chunk(128)], ids=str)


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + i * 7) % 500 + 1 for i in range(count)]


def greedy(span: Span, prompt: list[int], count: int = 8) -> list[int]:
    return FakeEngine(span=span).greedy(prompt, count)


@spans
@pytest.mark.parametrize("length", [1, 64, 65, 300, 1000])
async def test_a_handoff_carries_what_the_first_decoded_row_sees(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span, length: int
) -> None:
    async with mesh(memory_broker, tmp_path, span=span, step_tokens=100) as m:
        prompt = tokens(length)
        answer = await m.finish(make_work(prompt, max_tokens=150))
        assert answer.all() == greedy(span, prompt, 150)
        await m.idle()


async def test_pages_of_a_window_that_nobody_sees_any_more_are_never_pushed(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path, span=Window(100)) as m:
        commits: list[Commit] = []
        commit = m.decode._handoffs.commit

        async def hear(handoff: Handoff, message: Commit) -> None:
            commits.append(message)
            await commit(handoff, message)

        monkeypatch.setattr(m.decode._handoffs, "commit", hear)
        await m.finish(make_work(tokens(1000)))
        await m.finish(make_work(tokens(1000) + tokens(20, seed=2)))
        # A row at 1000 sees 901 and on: 16 pages of one group, and pages 14 and 15 of the other. In the second turn
        # pages up to 960 are resident; a row at 1020 sees 921 and on, of which page 14 is resident too.
        assert [len(c.pages) for c in commits] == [18, 2]
        await m.idle()


@spans
async def test_a_growing_conversation_reuses_what_both_workers_hold(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span
) -> None:
    async with mesh(memory_broker, tmp_path, span=span) as m:
        prompt = tokens(200)
        for turn, cached in enumerate((0, 192, 256, 320)):
            answer = await m.finish(make_work(prompt))
            assert answer.all() == greedy(span, prompt)
            assert answer.started.cached == CachedTokens(device=cached)
            prompt = prompt + answer.all() + tokens(60, seed=turn + 2)
        await m.idle()


@spans
async def test_a_pool_too_small_for_all_preempts_and_still_answers(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span
) -> None:
    async with mesh(memory_broker, tmp_path, pages=14, span=span, step_tokens=64) as m:
        works = [make_work(tokens(70, seed=i), max_tokens=200) for i in range(4)]
        for work, answer in zip(works, await asyncio.gather(*map(m.finish, works)), strict=True):
            assert answer.all() == greedy(span, work.prompt, 200)
        await m.idle()


@spans
async def test_both_pools_full_of_each_others_requests_is_no_deadlock(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span
) -> None:
    async with mesh(memory_broker, tmp_path, pages=16, span=span, step_tokens=64, step_s=0.001) as m:
        works = [make_work(tokens(400 - 20 * i, seed=i), max_tokens=30) for i in range(12)]
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*(m.finish(w, remote=i % 4 > 0) for i, w in enumerate(works)))
        for work, answer in zip(works, answers, strict=True):
            assert answer.all() == greedy(span, work.prompt, 30)
        await m.idle()


async def test_drafts_change_no_token(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    span, prompt = Window(100), tokens(200)
    async with mesh(memory_broker, tmp_path, drafter=True, span=span, step_s=0.004) as m:
        await until(lambda: all(bool(s.context.roster.alive("drafter")) for s in m.workers))
        for _ in range(2):
            answer = await m.finish(make_work(prompt, max_tokens=150))
            assert answer.all() == greedy(span, prompt, 150)
        assert isinstance(answer.end, Done)
        assert answer.end.accepted >= 50
        await m.idle()


async def test_a_cancelled_handoff_quarantines_the_pages_of_every_group(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path, span=Window(100), step_s=0.05, step_tokens=64) as m:
        stopped = asyncio.Event()
        stop = m.prefill._stop

        async def stop_later(*args: object) -> None:
            await stopped.wait()
            await stop(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(m.prefill, "_stop", stop_later)
        work = make_work(tokens(300))
        await m.ask(work)
        await until(lambda: m.decode.host.transport.has_peer(m.prefill.context.identity.worker))
        cancel = Cancel(request_id=work.request_id, attempt=1)
        await rpc.call(m.bus, subjects.CANCEL, "decode", m.decode.context.identity.worker, cancel)
        await until(lambda: m.decode.load().running == 0)
        # Five pages for 300 positions, and pages 3 and 4 of the window, of which a row at 300 sees 201 and on.
        assert m.decode.load().pages_used == 7
        stopped.set()
        await m.idle()


async def test_a_wrong_byte_in_a_page_of_the_window_aborts_the_request(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path, span=Window(100)) as m:
        commit = m.decode._handoffs.commit

        async def flip_then_commit(handoff: Handoff, message: Commit) -> None:
            page = handoff.attempt.sequence.holdings.of(1)[-1]
            m.decode.host.arena.pages[page, 17] ^= 1
            await commit(handoff, message)

        monkeypatch.setattr(m.decode._handoffs, "commit", flip_then_commit)
        answer = await m.finish(make_work(tokens(200)))
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "integrity"
        await m.idle()


async def test_room_counts_the_pages_of_all_groups(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    """Of 32 pages a window of 100 takes 4 with steps of 64 rows, and every other one is 64 positions."""
    async with mesh(memory_broker, tmp_path, pages=32, span=Window(100), step_tokens=64) as m:
        model = m.decode.model()
        assert model is not None
        assert model.context == 28 * 64
        with pytest.raises(ContextTooLong, match=f"maximum context length is {28 * 64} tokens"):
            await m.ask(make_work(tokens(28 * 64)))
        prompt = tokens(28 * 64 - 5)
        answer = await m.finish(make_work(prompt, max_tokens=5))
        assert answer.all() == greedy(Window(100), prompt, 5)
        await m.idle()


def _forget_cache(scheduler: Scheduler) -> None:
    scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.available))


async def stored_then_forgotten(m: Mesh, *prompts: list[int]) -> None:
    """The kvstore has what is behind the full pages of each prompt, and no worker has anything."""
    await until(lambda: all(bool(s.context.roster.alive("kvstore")) for s in m.workers))
    for prompt in prompts:
        await m.finish(make_work(prompt))
    await until(lambda: m.prefill.store.unsaved == 0)
    await m.idle()
    for service in m.workers:
        await service.host.thread.call(_forget_cache)


@spans
@pytest.mark.parametrize("remote", [True, False], ids=["prefill", "unified"])
async def test_a_stored_prefix_of_both_groups_is_reused(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span, remote: bool
) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True, span=span) as m:
        prompt = tokens(1000)
        await stored_then_forgotten(m, prompt)
        window = 15 - FakeEngine(span=span).layout.groups[1].first_page(960)
        assert m.kvstore.load().pages_cached == 15 + window
        again = await m.finish(make_work([*prompt, 1, 2]), remote=remote)
        assert again.all() == greedy(span, [*prompt, 1, 2])
        assert again.started.cached == CachedTokens(host=960)
        await m.idle()
        await until(lambda: m.kvstore.load().leases == 0)


async def test_a_fork_reuses_the_last_prefix_whose_window_is_stored(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """Of a longer prompt the fork shares 12 full pages, but windows are there behind 6 and behind 15 pages."""
    span = Window(100)
    async with mesh(memory_broker, tmp_path, kvstore=True, span=span) as m:
        long = tokens(1000)
        await stored_then_forgotten(m, long[:400], long)
        fork = long[: 12 * 64 + 10] + tokens(50, seed=3)
        again = await m.finish(make_work(fork))
        assert again.all() == greedy(span, fork)
        assert again.started.cached == CachedTokens(host=384)
        await m.idle()


async def test_a_wrong_byte_in_a_stored_window_is_a_miss(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True, span=Window(100)) as m:
        await stored_then_forgotten(m, tokens(300))
        arena = m.kvstore._tier.arena
        assert arena is not None
        # Only the second layer's keys are that large.
        window = arena.pages.view("float32")[:, 0] >= 1 << 20
        assert window.sum() == 2
        arena.pages[window, 100] ^= 1
        again = await m.finish(make_work(tokens(300)))
        assert again.all() == greedy(Window(100), tokens(300))
        assert again.started.cached == CachedTokens()
        assert m.prefill.load().counters["store_damaged"] == 1
        await m.idle()

"""Prefill and decode workers together: the fake engine's answer changes with every wrong KV byte, so that an answer
equal to `FakeEngine.greedy` proves the handoff."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from paceline.bus import rpc
from paceline.bus.memory import MemoryBroker
from paceline.contracts import subjects
from paceline.contracts.errors import Cancelled, ContextTooLong, IntegrityError, InvalidRequest, WorkerLost
from paceline.contracts.messages import CachedTokens, Cancel, Commit, Done, Failed, Resend
from paceline.decode.handoff import Handoff
from paceline.engine.fake import FakeEngine
from paceline.engine.scheduler import Scheduler
from paceline.worker.attempts import Attempt
from tests.helpers import until
from tests.workers import GATEWAY, PAGES, Mesh, make_work, mesh


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + i * 7) % 500 + 1 for i in range(count)]


def greedy(prompt: list[int], count: int) -> list[int]:
    return FakeEngine().greedy(prompt, count)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 300, 1000])
async def test_the_answer_is_that_of_a_single_loop_and_the_prompt_is_cold(
    memory_broker: MemoryBroker, tmp_path: Path, length: int
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        prompt = tokens(length)
        answer = await m.finish(make_work(prompt))
        assert answer.all() == greedy(prompt, 8)
        assert isinstance(answer.end, Done)
        assert (answer.end.finish_reason, answer.end.tokens) == ("length", 8)
        assert answer.started.cached == CachedTokens(device=0)
        assert answer.started.worker == m.prefill.context.identity.worker
        await m.idle()


async def test_a_growing_conversation_reuses_prefill_pages_and_resident_decode_pages(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        prompt = tokens(200)
        first = await m.finish(make_work(prompt))
        prompt = prompt + first.all() + tokens(60, seed=2)
        second = await m.finish(make_work(prompt))
        assert second.all() == greedy(prompt, 8)
        assert second.started.cached == CachedTokens(device=192)
        await m.idle()


async def test_many_requests_at_once_each_get_their_own_answer(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, step_tokens=64) as m:
        works = [make_work(tokens(20 + 37 * i, seed=i), max_tokens=5 + i) for i in range(8)]
        answers = await asyncio.gather(*(m.finish(w, remote=i % 3 > 0) for i, w in enumerate(works)))
        for work, answer in zip(works, answers, strict=True):
            assert answer.all() == greedy(work.prompt, work.sampling.max_tokens)
        await m.idle()


async def test_decode_sends_one_frame_per_step_for_all_its_sequences(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, step_s=0.01) as m:
        await asyncio.gather(*(m.finish(make_work([5 + i], max_tokens=20), remote=False) for i in range(4)))
        assert sum(len(a.tokens) for a in m.answers.values()) == 80
        assert len(m.frames) <= 25


async def test_a_pool_too_small_for_all_preempts_and_still_answers(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, pages=8) as m:
        works = [make_work(tokens(70, seed=i), max_tokens=150) for i in range(3)]
        for work, answer in zip(works, await asyncio.gather(*map(m.finish, works)), strict=True):
            assert answer.all() == greedy(work.prompt, 150)
        await m.idle()


async def test_a_request_that_its_first_token_ends_is_ended_by_prefill(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        prompt = tokens(100)
        first = greedy(prompt, 1)[0]
        by_length = await m.finish(make_work(prompt, max_tokens=1))
        by_stop = await m.finish(make_work(prompt, sampling={"stop_token_ids": (first,)}))
        for answer, reason in ((by_length, "length"), (by_stop, "stop")):
            assert isinstance(answer.end, Done)
            assert answer.all() == [first]
            assert (answer.end.worker, answer.end.finish_reason) == (
                m.prefill.context.identity.worker,
                reason,
            )
        await m.idle()


async def test_a_second_attempt_continues_behind_the_tokens_of_the_first(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        prompt = tokens(90)
        expected = greedy(prompt, 8)
        work = make_work(prompt, attempt=2, output=expected[:3])
        answer = await m.finish(work)
        assert answer.tokens == dict(enumerate(expected[3:], 3))
        assert isinstance(answer.end, Done)
        assert answer.end.tokens == 8


async def test_sampled_answers_do_not_depend_on_the_path(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    sampling = {"temperature": 0.9, "seed": 11, "presence_penalty": 0.5}
    async with mesh(memory_broker, tmp_path) as m:
        remote = await m.finish(make_work(tokens(150), sampling=sampling))
        local = await m.finish(make_work(tokens(150), sampling=sampling), remote=False)
        assert remote.all() == local.all()
        assert remote.all() != greedy(tokens(150), 8)


async def test_a_repeated_dispatch_is_taken_once(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    async with mesh(memory_broker, tmp_path, step_s=0.01) as m:
        work, transfer = make_work(tokens(100)), secrets.token_hex(16)
        await m.ask(work, transfer_id=transfer)
        answer = await m.ask(work, transfer_id=transfer)
        await until(lambda: answer.end is not None)
        assert answer.all() == greedy(work.prompt, 8)
        assert (m.prefill.counters.requests, m.decode.counters.requests) == (1, 1)


async def test_work_that_arrives_after_its_cancel_is_refused(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        work = make_work(tokens(10))
        for service in m.workers:
            identity = service.context.identity
            cancel = Cancel(request_id=work.request_id, attempt=1)
            await rpc.call(m.bus, subjects.CANCEL, identity.role, identity.worker, cancel)
        with pytest.raises(Cancelled):
            await m.ask(work)
        await m.idle()


@pytest.mark.parametrize("when", ["queued", "prefill", "decode"])
async def test_a_cancel_frees_both_legs_at_any_time(
    memory_broker: MemoryBroker, tmp_path: Path, when: str
) -> None:
    async with mesh(memory_broker, tmp_path, step_s=0.02, step_tokens=64) as m:
        work = make_work(tokens(500), max_tokens=1000)
        answer = await m.ask(work)
        if when == "prefill":
            await until(lambda: m.prefill.load().pages_used > 0 and m.decode.load().pages_used > 0)
        if when == "decode":
            await until(lambda: len(answer.tokens) > 2)
        for service in m.workers:
            identity = service.context.identity
            cancel = Cancel(request_id=work.request_id, attempt=1)
            await rpc.call(m.bus, subjects.CANCEL, identity.role, identity.worker, cancel)
        async with asyncio.timeout(1.0):
            await m.idle()
        assert answer.end is None


async def test_lost_events_are_sent_again_on_request(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        work = make_work(tokens(70))
        expected = (await m.finish(work)).all()
        del m.answers[work.request_id]
        for service, index in ((m.prefill, 0), (m.decode, 5)):
            identity = service.context.identity
            resend = Resend(request_id=work.request_id, attempt=1, index=index)
            await rpc.call(m.bus, subjects.RESEND, identity.role, identity.worker, resend)
        await until(lambda: m.answers[work.request_id].end is not None)
        again = m.answers[work.request_id]
        assert again.tokens == {0: expected[0], **dict(enumerate(expected[5:], 5))}
        assert again.started.cached.total == 0
        unknown = Resend(request_id=secrets.token_hex(16), attempt=1, index=0)
        with pytest.raises(WorkerLost):
            await rpc.call(m.bus, subjects.RESEND, "decode", m.decode.context.identity.worker, unknown)


async def test_a_prompt_that_can_never_fit_is_refused_before_any_page_is_taken(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        with pytest.raises(ContextTooLong, match=f"maximum context length is {PAGES * 64} tokens"):
            await m.ask(make_work(tokens(PAGES * 64)))
        assert m.prefill.load().pages_used == m.decode.load().pages_used == 0


async def test_a_wrong_byte_in_a_pushed_page_aborts_the_request(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        commit = m.decode._handoffs.commit

        async def flip_then_commit(handoff: Handoff, message: Commit) -> None:
            m.decode.host.arena.pages[message.pages[1].page, 17] ^= 1
            await commit(handoff, message)

        monkeypatch.setattr(m.decode._handoffs, "commit", flip_then_commit)
        answer = await m.finish(make_work(tokens(200)))
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "integrity"
        assert sorted(answer.tokens) == [0]  # from prefill, which had the right bytes
        assert m.decode.load().counters["integrity"] == 1
        await m.idle()


async def test_a_commit_for_a_transfer_that_is_over_is_refused(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        transfer = secrets.token_hex(16)
        await m.finish(make_work(tokens(100)), transfer_id=transfer)
        stale = Commit(transfer_id=transfer, tokens=100, first_token=1, sampled_at=0.0, pages=[], digests=[])
        with pytest.raises(IntegrityError, match="not being filled"):
            await rpc.call(m.bus, subjects.COMMIT, "decode", m.decode.context.identity.worker, stale)


async def test_a_commit_for_pages_that_changed_hands_ends_the_request(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, step_s=0.05, step_tokens=64) as m:
        work = make_work(tokens(200))
        answer = await m.ask(work)
        await until(lambda: m.decode.load().pages_used > 0)
        attempt = m.decode.attempts.get(work.request_id, 1)
        assert attempt is not None
        page = int(attempt.sequence.holdings.pages[0, 3])
        await m.decode.host.thread.call(lambda scheduler: scheduler.pool.tags.change(page))
        await until(lambda: answer.end is not None)
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "integrity"
        await m.idle()


async def test_without_integrity_tags_answers_are_the_same(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, kv_integrity="off") as m:
        prompt = tokens(150)
        assert (await m.finish(make_work(prompt))).all() == greedy(prompt, 8)


async def test_the_kvstore_gives_a_prefix_to_a_worker_that_never_computed_it(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    async with mesh(memory_broker, tmp_path, kvstore=True) as m:
        await until(lambda: bool(m.prefill.context.roster.alive("kvstore")))
        await until(lambda: bool(m.decode.context.roster.alive("kvstore")))
        prompt = tokens(300)
        await m.finish(make_work(prompt))
        await until(lambda: _stored(m) == 4)
        await m.prefill.host.thread.call(_forget_cache)
        again = await m.finish(make_work(prompt))
        assert again.all() == greedy(prompt, 8)
        assert again.started.cached == CachedTokens(device=0, host=256)
        await m.idle()


def _stored(m: Mesh) -> int:
    (beacon,) = m.prefill.context.roster.alive("kvstore")
    return beacon.load.pages_cached


def _forget_cache(scheduler: Scheduler) -> None:
    scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.available))


async def test_a_late_push_is_stopped_by_the_tags_and_leaves_no_byte(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """The decode worker takes its pages back without a word to the prefill worker, which goes on computing."""
    async with mesh(memory_broker, tmp_path, step_s=0.05, step_tokens=64) as m:
        work = make_work(tokens(300))
        answer = await m.ask(work)
        await until(lambda: m.decode.load().pages_used > 0)
        attempt = m.decode.attempts.get(work.request_id, 1)
        assert attempt is not None
        pages = await m.decode.host.thread.call(lambda scheduler: scheduler.quarantine(attempt.sequence))
        m.decode.host.arena.pages[pages] = 0
        await until(lambda: answer.end is not None)
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "integrity"
        assert not m.decode.host.arena.pages[pages].any()
        await m.decode.host.thread.call(lambda scheduler: scheduler.pool.end_quarantine(pages))
        await m.idle()


async def test_pages_of_a_cancelled_handoff_are_free_only_when_prefill_has_stopped(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path, step_s=0.05, step_tokens=64) as m:
        stopped = asyncio.Event()
        stop = m.prefill._stop

        async def stop_later(attempt: Attempt) -> None:
            await stopped.wait()
            await stop(attempt)

        monkeypatch.setattr(m.prefill, "_stop", stop_later)
        work = make_work(tokens(300))
        await m.ask(work)
        await until(lambda: m.decode.host.transport.has_peer(m.prefill.context.identity.worker))
        cancel = Cancel(request_id=work.request_id, attempt=1)
        await rpc.call(m.bus, subjects.CANCEL, "decode", m.decode.context.identity.worker, cancel)
        await until(lambda: m.decode.load().running == 0)
        # Nothing runs, and yet neither a page nor the lease is free.
        assert (m.decode.load().pages_used, m.decode.load().leases) == (5, 1)
        stopped.set()
        await m.idle()


async def test_both_pools_full_of_each_others_requests_is_no_deadlock(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """Prefill takes the shortest first and decode the earliest, so that their pools fill with different requests."""
    async with mesh(memory_broker, tmp_path, pages=10, step_s=0.002) as m:
        works = [make_work(tokens(400 - 20 * i, seed=i), max_tokens=30) for i in range(12)]
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*map(m.finish, works))
        for work, answer in zip(works, answers, strict=True):
            assert answer.all() == greedy(work.prompt, 30)
        await m.idle()


async def test_a_commit_that_is_sent_twice_is_carried_out_once(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        commit = m.prefill.context.bus.request

        async def twice(subject: str, *args: Any, **kwargs: Any) -> Any:
            if subject.endswith(".commit"):
                answers = await asyncio.gather(*(commit(subject, *args, **kwargs) for _ in range(2)))
                assert answers[0].data == answers[1].data
                return answers[0]
            return await commit(subject, *args, **kwargs)

        monkeypatch.setattr(m.prefill.context.bus, "request", twice)
        works = [make_work(tokens(100 + i, seed=i)) for i in range(4)]
        for work, answer in zip(works, await asyncio.gather(*map(m.finish, works)), strict=True):
            assert answer.all() == greedy(work.prompt, 8)
        await m.idle()


async def test_a_message_that_cannot_be_sent_does_not_stop_the_next_ones(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        publish = m.decode.context.bus.publish
        failed: list[str] = []

        async def fail_once(subject: str, *args: Any, **kwargs: Any) -> None:
            if subject == subjects.events(GATEWAY) and not failed:
                failed.append(subject)
                raise ValueError("no")
            await publish(subject, *args, **kwargs)

        monkeypatch.setattr(m.decode.context.bus, "publish", fail_once)
        answer = await m.finish(make_work(tokens(100)))
        assert failed
        assert (
            len(answer.tokens) == 7
        )  # the first of decode's tokens is missing, until the gateway asks for it
        resend = Resend(request_id=answer.started.request_id, attempt=1, index=1)
        answer.events.clear()
        await rpc.call(m.bus, subjects.RESEND, "decode", m.decode.context.identity.worker, resend)
        await until(lambda: answer.end is not None)
        assert answer.all() == greedy(tokens(100), 8)


async def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(
    memory_broker: MemoryBroker, tmp_path: Path
) -> None:
    """Three pages of memory are no pool."""
    with pytest.raises(InvalidRequest, match="at least 4 are needed"):
        async with mesh(memory_broker, tmp_path, pages=3):
            pass
    assert not list(tmp_path.iterdir())

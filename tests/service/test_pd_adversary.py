"""What went wrong once under random traffic, deaths and damage."""

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from paceline.bus import rpc
from paceline.bus.memory import MemoryBroker
from paceline.contracts import subjects
from paceline.contracts.errors import IntegrityError
from paceline.contracts.messages import Cancel, Commit, Confirm, Done, Failed
from paceline.decode.handoff import Handoff
from paceline.engine.fake import FakeEngine
from paceline.worker.pagestore import PageStore
from tests.helpers import until
from tests.workers import Mesh, make_work, mesh


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + i * 7) % 500 + 1 for i in range(count)]


async def cancel(m: Mesh, request_id: str) -> None:
    for service in m.workers:
        identity = service.context.identity
        message = Cancel(request_id=request_id, attempt=1)
        await rpc.call(m.bus, subjects.CANCEL, identity.role, identity.worker, message)


async def test_a_copy_that_fails_after_its_request_was_cancelled_is_no_news(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    copying, cancelled = threading.Event(), threading.Event()

    def fail_late(page: memoryview) -> bytes:
        copying.set()
        assert cancelled.wait(10)
        raise IntegrityError("the page changed hands")

    monkeypatch.setattr("paceline.prefill.handoff.digest", fail_late)
    async with mesh(memory_broker, tmp_path) as m:
        work = make_work(tokens(200))
        await m.ask(work)
        await until(copying.is_set)
        await cancel(m, work.request_id)
        cancelled.set()
        await m.idle()
    gc.collect()
    assert complaints == []


async def test_a_worker_that_leaves_while_it_saves_pages_ends(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = asyncio.Event()

    async def save_for_ever(*_: Any) -> None:
        saving.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(PageStore, "_put", save_for_ever)
    async with asyncio.timeout(5):
        async with mesh(memory_broker, tmp_path, kvstore=True) as m:
            await until(lambda: all(bool(s.context.roster.alive("kvstore")) for s in m.workers))
            await m.finish(make_work(tokens(200)))
            await saving.wait()
            pool = m.prefill.host._pool
    assert pool.used == 0


def damage_every_commit(m: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = m.decode._handoffs.commit

    async def flip_then_commit(handoff: Handoff, message: Commit) -> None:
        m.decode.host.arena.pages[message.pages[0].page, 17] ^= 1
        await commit(handoff, message)

    monkeypatch.setattr(m.decode._handoffs, "commit", flip_then_commit)


async def test_an_answer_that_its_first_token_ends_has_one_end_whatever_its_pages_hold(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mesh(memory_broker, tmp_path) as m:
        damage_every_commit(m, monkeypatch)
        answer = await m.finish(make_work(tokens(200), max_tokens=1))
        await m.idle()
        assert isinstance(answer.end, Done)  # the only one
        assert answer.all() == FakeEngine().greedy(tokens(200), 1)


async def test_damage_ends_an_attempt_and_is_no_crash(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as lines:
        async with mesh(memory_broker, tmp_path) as m:
            damage_every_commit(m, monkeypatch)
            answer = await m.finish(make_work(tokens(200)))
            await m.idle()
    assert isinstance(answer.end, Failed)
    assert [line["event"] for line in lines if line["log_level"] in ("warning", "error")] == [
        "attempt_failed"
    ]


async def test_a_confirmation_that_overtakes_the_end_of_a_commit_is_no_crash(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as lines:
        async with mesh(memory_broker, tmp_path) as m:
            commit = m.decode._handoffs.commit

            async def commit_then_confirm(handoff: Handoff, message: Commit) -> None:
                await commit(handoff, message)
                await m.decode._cancel(Confirm(request_id=handoff.attempt.work.request_id, attempt=1))

            monkeypatch.setattr(m.decode._handoffs, "commit", commit_then_confirm)
            await m.finish(make_work(tokens(200), max_tokens=1))
            await m.idle()
    assert [line for line in lines if line["log_level"] == "error"] == []

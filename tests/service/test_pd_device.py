"""Workers whose engine computes in a memory of its own: what others read or write is copied at the right time."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens, Failed
from paceline.decode.handoff import Handoffs
from paceline.engine.fake import FakeEngine
from paceline.engine.interface import Pages
from paceline.engine.scheduler import Scheduler
from paceline.model.config import Chunk, Span, Window
from tests.helpers import until
from tests.workers import Mesh, make_work, mesh

SPANS: list[Span | None] = [None, Window(100), Chunk(128)]


class DeviceEngine(FakeEngine):
    """Its memory and the bound one start with different bytes, and only copies make them equal."""

    in_place = False
    page_memory: int | None = 1 << 30

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._host: npt.NDArray[np.uint8] = np.empty((0, 0), dtype=np.uint8)
        self._device = self._host
        self.imported: list[int] = []

    def bind(self, pages: Pages) -> None:
        pages[:] = 0x11
        self._host, self._device = pages, np.full_like(pages, 0x22)
        super().bind(self._device)

    def export_pages(self, pages: Sequence[int]) -> None:
        assert threading.current_thread().name == "engine"
        self._host[list(pages)] = self._device[list(pages)]

    def import_pages(self, pages: Sequence[int]) -> None:
        assert threading.current_thread().name == "engine"
        self._device[list(pages)] = self._host[list(pages)]
        self.imported += pages


@pytest.fixture(autouse=True)
def on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.fake.FakeEngine", DeviceEngine)
    monkeypatch.setattr("tests.workers.FakeEngine", DeviceEngine)


def tokens(count: int, seed: int = 1) -> list[int]:
    return [(seed * 31 + i * 7) % 500 + 1 for i in range(count)]


def greedy(span: Span | None, prompt: list[int], count: int = 8) -> list[int]:
    return FakeEngine(span=span).greedy(prompt, count)


def engine_of(m: Mesh) -> DeviceEngine:
    """That of the decode worker."""
    engine = m.decode.host._engine
    assert isinstance(engine, DeviceEngine)
    return engine


@pytest.mark.parametrize("span", SPANS, ids=str)
async def test_handoffs_of_chunks_and_of_conversations(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span | None
) -> None:
    async with mesh(memory_broker, tmp_path, span=span, step_tokens=100) as m:
        for length in (1, 64, 65, 300):
            prompt = tokens(length, seed=length)
            first = await m.finish(make_work(prompt))
            assert first.all() == greedy(span, prompt)
            prompt = prompt + first.all() + tokens(60, seed=2)
            assert (await m.finish(make_work(prompt))).all() == greedy(span, prompt)
        await m.idle()


@pytest.mark.parametrize("span", SPANS, ids=str)
async def test_pages_that_went_through_the_kvstore(
    memory_broker: MemoryBroker, tmp_path: Path, span: Span | None
) -> None:
    async with mesh(memory_broker, tmp_path, span=span, kvstore=True) as m:
        for service in m.workers:
            roster = service.context.roster
            await until(lambda roster=roster: bool(roster.alive("kvstore")))  # type: ignore[misc]
        prompt = tokens(300)
        await m.finish(make_work(prompt), remote=False)
        await until(lambda: m.decode.store.unsaved == 0)
        again = await m.finish(make_work(prompt))
        assert again.all() == greedy(span, prompt)
        assert again.started.cached == CachedTokens(device=0, host=256)
        await m.decode.host.thread.call(_forget_cache)
        longer = prompt + tokens(50, seed=3)
        assert (await m.finish(make_work(longer), remote=False)).all() == greedy(span, longer)
        await m.idle()


async def test_preemption_and_recomputation(memory_broker: MemoryBroker, tmp_path: Path) -> None:
    async with mesh(memory_broker, tmp_path, pages=8) as m:
        works = [make_work(tokens(70, seed=i), max_tokens=150) for i in range(3)]
        for work, answer in zip(works, await asyncio.gather(*map(m.finish, works)), strict=True):
            assert answer.all() == greedy(None, work.prompt, 150)
        await m.idle()


async def test_pages_that_changed_hands_before_they_are_taken_over_stay_as_they_are(
    memory_broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its bytes were compared, a page becomes somebody else's."""
    compare = Handoffs._compare
    compared, changed = threading.Event(), threading.Event()

    def hold(self: Handoffs, *args: Any) -> None:
        compare(self, *args)
        compared.set()
        assert changed.wait(10)

    monkeypatch.setattr(Handoffs, "_compare", hold)
    async with mesh(memory_broker, tmp_path) as m:
        work = make_work(tokens(200))
        answer = await m.ask(work)
        await until(compared.is_set)
        attempt = m.decode.attempts.get(work.request_id, 1)
        assert attempt is not None
        page = int(attempt.sequence.holdings.pages[0, 2])
        await m.decode.host.thread.call(lambda scheduler: scheduler.pool.tags.change(page))
        changed.set()
        await until(lambda: answer.end is not None)
        assert isinstance(answer.end, Failed)
        assert answer.end.code == "integrity"
        assert engine_of(m).imported == []
        await m.idle()


def _forget_cache(scheduler: Scheduler) -> None:
    scheduler.pool.release(scheduler.pool.allocate(scheduler.pool.available))

"""Bodies that are read at once, and who has to go."""

import asyncio

import pytest

from paceline.contracts.errors import Busy
from paceline.gateway import uploads
from paceline.gateway.uploads import Uploads
from tests.helpers import settle


async def upload(places: Uploads, done: asyncio.Event, seconds: float = 9.0) -> None:
    async with places.place(seconds):
        await done.wait()


async def test_a_new_upload_is_refused_while_all_places_are_taken_by_young_ones() -> None:
    places, done = Uploads(2), asyncio.Event()
    running = [asyncio.create_task(upload(places, done)) for _ in range(2)]
    await settle()
    with pytest.raises(Busy):
        await upload(places, done)
    assert len(places) == 2
    done.set()
    await asyncio.gather(*running)
    assert len(places) == 0


async def test_the_longest_upload_makes_room_once_it_lasts_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SAFE_S", 0.0)
    places, done = Uploads(2), asyncio.Event()
    first, second, third = (asyncio.create_task(upload(places, done)) for _ in range(3))
    with pytest.raises(TimeoutError):
        await first
    assert len(places) == 2
    done.set()
    await asyncio.gather(second, third)
    assert len(places) == 0


async def test_an_upload_that_takes_too_long_or_is_cancelled_gives_its_place_back() -> None:
    places, never = Uploads(1), asyncio.Event()
    with pytest.raises(TimeoutError):
        await upload(places, never, seconds=0.01)
    left = asyncio.create_task(upload(places, never))
    await settle()
    left.cancel()
    await asyncio.wait([left])
    assert len(places) == 0

"""When work that has time may enter."""

import asyncio

from paceline.gateway.admission import Admission
from tests.helpers import settle


async def test_work_with_time_enters_one_by_one_while_half_of_the_places_are_free() -> None:
    admission = Admission(max_running=4, max_waiting=4)
    leave = asyncio.Event()
    entered = 0

    async def offline() -> None:
        nonlocal entered
        await admission.spare()
        with admission.enter():
            entered += 1
            await leave.wait()

    with admission.enter():
        tasks = [asyncio.create_task(offline()) for _ in range(3)]
        await settle()
        assert entered == 1
    await settle()
    assert entered == 2
    leave.set()
    await asyncio.gather(*tasks)
    assert entered == 3

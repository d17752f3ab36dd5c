"""Tasks are never lost."""

import asyncio

import pytest
from structlog.testing import capture_logs

from paceline.contracts.errors import InvalidRequest
from paceline.runtime.identity import new_identity
from paceline.runtime.tasks import Tasks
from tests.helpers import settle


async def test_tasks_count_only_while_they_run() -> None:
    tasks = Tasks()
    go_on = asyncio.Event()
    waiting = tasks.spawn(go_on.wait(), name="wait")
    assert len(tasks) == 1
    go_on.set()
    assert await waiting is True
    await settle()
    assert len(tasks) == 0


async def test_an_exception_is_logged_with_the_name_of_its_task() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    with capture_logs() as lines:
        tasks.spawn(fail(), name="pump")
        await settle()
    (line,) = lines
    assert (line["event"], line["task"], line["log_level"]) == ("task_failed", "pump", "error")
    assert str(line["exc_info"]) == "broken"


async def test_cancel_all_ends_also_what_a_cancelled_task_spawns() -> None:
    tasks = Tasks()
    ended = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.spawn(last(), name="last")
            await asyncio.sleep(0)
            ended.append("stubborn")

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    tasks.spawn(stubborn(), name="stubborn")
    await settle()
    await tasks.cancel_all()
    assert (sorted(ended), len(tasks)) == (["last", "stubborn"], 0)


async def test_a_task_may_cancel_all_the_others() -> None:
    tasks = Tasks()
    tasks.spawn(asyncio.Event().wait(), name="other")
    await tasks.spawn(tasks.cancel_all(), name="closer")
    await settle()
    assert len(tasks) == 0


def test_each_life_has_another_incarnation_and_ids_name_the_role() -> None:
    one, two = new_identity("decode", "w1"), new_identity("decode", "w1")
    assert one.worker == two.worker == "w1"
    assert one.incarnation != two.incarnation
    assert new_identity("decode", None).worker.startswith("decode-")


@pytest.mark.parametrize("worker", ["", "a.b", "a b", "*", ">", "ä", "a/b", "x" * 49])
def test_an_id_that_is_no_subject_token_is_refused(worker: str) -> None:
    with pytest.raises(InvalidRequest, match="worker id"):
        new_identity("decode", worker)

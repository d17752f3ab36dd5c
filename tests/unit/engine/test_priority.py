"""Work of low priority gets what others leave."""

from paceline.engine.scheduler import PATIENCE
from paceline.engine.sequence import Sequence, State
from tests.builders import make_scheduler, make_sequence, run


def low(tokens: int | list[int], **kwargs: object) -> Sequence:
    sequence = make_sequence(tokens, **kwargs)  # type: ignore[arg-type]
    sequence.low_priority = True
    return sequence


def ids(entries: tuple[object, ...]) -> list[tuple[str, int]]:
    return [(e.sequence.request_id, e.rows) for e in entries]  # type: ignore[attr-defined]


def test_prompts_of_others_come_first_until_it_has_waited_long() -> None:
    scheduler = make_scheduler(step_tokens=100)
    scheduler.add(low([1] * 10, name="low", arrival=0.0))
    scheduler.add(make_sequence([2] * 95, name="live", arrival=5.0))
    plan, _ = run(scheduler, now=5.0)
    assert ids(plan.entries) == [("live", 95), ("low", 5)]

    scheduler = make_scheduler(step_tokens=100)
    scheduler.add(low([1] * 10, name="low", arrival=0.0))
    scheduler.add(make_sequence([2] * 95, name="live", arrival=PATIENCE + 1))
    plan, _ = run(scheduler, now=PATIENCE + 1)
    assert ids(plan.entries) == [("low", 10), ("live", 90)]


def test_it_decodes_behind_others_and_gives_its_pages_back_first() -> None:
    scheduler = make_scheduler(pages=4)
    early = low([1] * 60, name="low", arrival=0.0, output=100)
    live = make_sequence([2] * 60, name="live", arrival=1.0, output=100)
    scheduler.add(early)
    run(scheduler)
    scheduler.add(live)
    run(scheduler)
    plan, _ = run(scheduler)
    assert ids(plan.entries) == [("live", 1), ("low", 1)]
    while live.finish_reason is None:
        run(scheduler)
    assert early.state in (State.WAITING, State.RUNNING)
    assert early.output_tokens < 100
    while early.finish_reason is None:
        run(scheduler)
    assert early.output_tokens == 100
    assert scheduler.pool.used == 0


def test_whoever_cannot_be_admitted_gets_its_place_in_the_same_step() -> None:
    scheduler = make_scheduler(sequences=2)
    batch = [low([i] * 10, name=f"low{i}", arrival=i) for i in (1, 2)]
    for sequence in batch:
        scheduler.add(sequence)
    run(scheduler)
    scheduler.add(make_sequence([5] * 10, name="live", arrival=3.0))
    plan, _ = run(scheduler)
    assert ids(plan.entries) == [("low1", 1), ("live", 10)]
    assert batch[1].state is State.WAITING
    assert batch[1].holdings.end == 0


def test_it_makes_room_for_nobody_of_its_kind_and_no_pages_are_taken_that_are_handed_over() -> None:
    scheduler = make_scheduler(sequences=1)
    running = low([1] * 10, name="running")
    scheduler.add(running)
    run(scheduler)
    waiting = low([2] * 10, name="waiting", arrival=1.0)
    scheduler.add(waiting)
    run(scheduler)
    assert (running.state, waiting.state) == (State.RUNNING, State.WAITING)

    scheduler = make_scheduler(sequences=1, step_tokens=10)
    handed = low([1] * 30, name="handed", hold=True)
    scheduler.add(handed)
    run(scheduler)
    live = make_sequence([2] * 10, name="live", arrival=1.0)
    scheduler.add(live)
    run(scheduler)
    assert (handed.state, live.state) == (State.RUNNING, State.WAITING)

"""The bounded queue in front of the mesh."""

import asyncio
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import Busy
from paceline.gateway.admission import Admission, Ticket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_so_many_run_so_many_wait_and_the_next_is_refused() -> None:
    admission = Admission(max_running=2, max_waiting=1)
    with ExitStack() as stack:
        tickets = [stack.enter_context(admission.enter()) for _ in range(3)]
        await admission.run(tickets[0])
        await admission.run(tickets[1])
        assert (admission.running, admission.waiting) == (2, 1)
        with pytest.raises(Busy), admission.enter():
            pass
        assert (admission.running, admission.waiting) == (2, 1)
    assert (admission.running, admission.waiting) == (0, 0)


async def test_turns_come_in_the_order_of_readiness_not_of_arrival() -> None:
    admission = Admission(max_running=1, max_waiting=9)
    order: list[str] = []

    async def request(name: str, ready: asyncio.Event) -> None:
        with admission.enter() as ticket:
            await ready.wait()
            await admission.run(ticket)
            order.append(name)

    uploaded = {name: asyncio.Event() for name in ("slow", "quick", "last")}
    async with asyncio.TaskGroup() as tasks:
        with admission.enter() as first:
            await admission.run(first)
            for name, event in uploaded.items():
                tasks.create_task(request(name, event))
            for name in ("quick", "slow", "last"):
                uploaded[name].set()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert order == []
    assert order == ["quick", "slow", "last"]


async def test_a_cancelled_waiter_leaves_its_turn_to_the_next() -> None:
    admission = Admission(max_running=1, max_waiting=9)

    async def request(entered: asyncio.Event) -> None:
        with admission.enter() as ticket:
            entered.set()
            await admission.run(ticket)

    with admission.enter() as first:
        await admission.run(first)
        events = [asyncio.Event() for _ in range(2)]
        gone, next_one = (asyncio.create_task(request(e)) for e in events)
        await asyncio.gather(*(e.wait() for e in events))
        assert admission.waiting == 2
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        assert admission.waiting == 1
    await next_one
    assert (admission.running, admission.waiting) == (0, 0)


async def test_a_turn_granted_to_someone_who_is_being_cancelled_is_not_lost() -> None:
    admission = Admission(max_running=1, max_waiting=9)

    async def request() -> None:
        with admission.enter() as ticket:
            await admission.run(ticket)

    with admission.enter() as first:
        await admission.run(first)
        waiter = asyncio.create_task(request())
        await asyncio.sleep(0)
    waiter.cancel()  # granted just now, but it has not run since
    with suppress(asyncio.CancelledError):
        await waiter
    assert (admission.running, admission.waiting) == (0, 0)


async def test_retry_after_is_the_time_the_queue_needs() -> None:
    clock = Clock()
    admission = Admission(max_running=1, max_waiting=4, clock=clock)
    for clock.now in (10.0, 12.0):
        with admission.enter() as ticket:
            await admission.run(ticket)
    clock.now = 20.0  # two requests left within the last 10 s: 0.2 a second
    with ExitStack() as stack:
        tickets = [stack.enter_context(admission.enter()) for _ in range(5)]
        await admission.run(tickets[0])
        with pytest.raises(Busy) as caught, admission.enter():
            pass
        assert caught.value.retry_after_s == pytest.approx(4 / 0.2)


async def test_retry_after_is_a_second_when_nothing_is_known() -> None:
    admission = Admission(max_running=0, max_waiting=0)
    with pytest.raises(Busy) as caught, admission.enter():
        pass
    assert caught.value.retry_after_s == 1.0


@given(st.lists(st.tuples(st.sampled_from(["enter", "ready", "leave"]), st.integers(0, 7)), max_size=60))
async def test_the_bounds_hold_in_any_order_of_events(steps: list[tuple[str, int]]) -> None:
    admission = Admission(max_running=2, max_waiting=3)
    stacks: dict[int, tuple[ExitStack, Ticket]] = {}
    ready: list[asyncio.Task[None]] = []
    for what, who in steps:
        if what == "enter" and who not in stacks:
            stack = ExitStack()
            with suppress(Busy):
                stacks[who] = (stack, stack.enter_context(admission.enter()))
        elif what == "ready" and who in stacks and stacks[who][1] not in admission._ready:
            ticket = stacks[who][1]
            if not ticket.running:
                ready.append(asyncio.create_task(admission.run(ticket)))
                await asyncio.sleep(0)
        elif what == "leave" and who in stacks:
            stacks.pop(who)[0].close()
        assert 0 <= admission.running <= 2
        assert admission.running + admission.waiting == len(stacks) <= 5
        if admission._ready:
            assert admission.running == 2
    for stack, _ in stacks.values():
        stack.close()
    for task in ready:
        task.cancel()
    await asyncio.gather(*ready, return_exceptions=True)
    assert (admission.running, admission.waiting) == (0, 0)

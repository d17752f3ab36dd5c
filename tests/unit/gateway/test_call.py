"""Who gets the tokens of a call: its tap as they come, or its handler when it is woken."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from paceline.contracts.errors import InternalError
from paceline.contracts.frames import Tokens
from paceline.contracts.messages import CachedTokens, Done, Sampling, Started, Timings
from paceline.gateway.call import Call, Job
from paceline.gateway.request import Request
from tests.helpers import until

ID = "ab" * 16


@dataclass
class Listener:
    """A handler with its tap, on a call whose tokens are said by hand."""

    takes: bool = True
    tapped: list[list[int]] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        job = Job(
            request_id=ID,
            model="m",
            tenant="a",
            salt=b"",
            session=b"",
            prompt=[1],
            sampling=Sampling(max_tokens=100),
            stop_ids=frozenset(),
            draft=False,
            deadline=0.0,
        )
        self.request = Request(max_tokens=100, stop_ids=frozenset())
        self.call = Call(job, self.request, self._dispatch)

    async def _dispatch(self, call: Call) -> None:
        self.request.begin(None, "d", 0.0)

    def tap(self, tokens: Sequence[int]) -> bool:
        if self.takes:
            self.tapped.append(list(tokens))
        return self.takes

    async def listen(self, patience: float = 60.0) -> None:
        while (tokens := await self.call.next_batch(patience, self.tap)) is not None:
            self.batches.append(list(tokens))

    async def say(self, index: int, *tokens: int) -> None:
        """A frame arrives, and everything runs that follows from it."""
        self.request.on_tokens(Tokens(ID, self.request.attempt, index, tokens), 0.0)
        self.call.notify()
        await turn()

    async def end(self, tokens: int) -> None:
        attempt = self.request.attempt
        started = Started(
            request_id=ID, attempt=attempt, worker="d", cached=CachedTokens(), timings=Timings()
        )
        self.request.on_event(started, 0.0)
        done = Done(request_id=ID, attempt=attempt, worker="d", finish_reason="stop", tokens=tokens)
        self.request.on_event(done, 0.0)
        self.call.notify()
        await turn()


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_batch_is_the_handlers_and_the_rest_goes_by_the_tap() -> None:
    listener = Listener()
    handler = asyncio.create_task(listener.listen())
    await turn()
    await listener.say(0, 5)
    await listener.say(1, 6, 7)
    await listener.say(3, 8)
    await listener.end(4)
    await handler
    assert listener.batches == [[5]]
    assert listener.tapped == [[6, 7], [8]]


async def test_what_the_tap_does_not_take_wakes_the_handler_and_nothing_overtakes_it() -> None:
    listener = Listener()
    handler = asyncio.create_task(listener.listen())
    await turn()
    await listener.say(0, 5)
    listener.takes = False
    for index in (1, 2):  # the second comes before the handler has run
        listener.request.on_tokens(Tokens(ID, 1, index, (index,)), 0.0)
        listener.call.notify()
        listener.takes = True
    await turn()
    await listener.say(3, 3)
    await listener.end(4)
    await handler
    assert listener.batches == [[5], [1, 2]]
    assert listener.tapped == [[3]]


async def test_the_next_attempt_is_the_handlers_to_dispatch() -> None:
    listener = Listener()
    handler = asyncio.create_task(listener.listen())
    await turn()
    await listener.say(0, 5)
    await listener.say(1, 6)
    listener.request.on_lost("decode", "d")
    listener.call.notify()
    await turn()
    assert (listener.request.attempt, listener.request.running) == (2, True)
    await listener.say(2, 7)
    await listener.end(3)
    await handler
    assert listener.batches + listener.tapped == [[5], [6], [7]]


async def test_an_error_reaches_the_handler_behind_the_tokens_before_it() -> None:
    listener = Listener()
    handler = asyncio.create_task(listener.listen())
    await turn()
    await listener.say(0, 5)
    await listener.say(1, 6)
    listener.request.end(InternalError("over"))
    listener.call.notify()
    with pytest.raises(InternalError, match="over"):
        await handler
    assert (listener.batches, listener.tapped) == ([[5]], [[6]])


async def test_patience_begins_anew_with_every_token_that_the_tap_takes() -> None:
    listener, patience = Listener(), 0.4
    handler = asyncio.create_task(listener.listen(patience))
    await turn()
    await listener.say(0, 5)
    clock = asyncio.get_running_loop().time
    began = last = clock()
    slowest, count = 0.0, 1
    while clock() - began < 2 * patience:
        await asyncio.sleep(0.01)
        slowest, last = max(slowest, clock() - last), clock()
        await listener.say(count, 6)
        count += 1
    # A machine that stops for so long loses its patience rightly.
    assert listener.batches == [[5]] or slowest > patience / 2
    await until(lambda: [] in listener.batches)
    await listener.end(count)
    await handler
    assert sum(map(len, listener.batches + listener.tapped)) == count

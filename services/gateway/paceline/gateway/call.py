"""A request in the mesh as its HTTP handler sees it: batches of tokens until the end."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from paceline.contracts.errors import PacelineError
from paceline.contracts.messages import Beacon, Role, Sampling, Work
from paceline.gateway.request import Request
from paceline.gateway.reservations import Reservation
from paceline.gateway.router import Prompt

Tap: TypeAlias = Callable[[Sequence[int]], bool]
"""Offered tokens as soon as they come, while the handler waits; whether it took them. Must not raise."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a client wants from the mesh. `deadline` is in UNIX seconds; `stop_ids` end the answer; an empty
    `session` has no preferred workers."""

    request_id: str
    model: str
    tenant: str
    salt: bytes
    session: bytes
    prompt: list[int]
    sampling: Sampling
    stop_ids: frozenset[int]
    draft: bool
    deadline: float
    low_priority: bool = False


@dataclass(frozen=True, slots=True)
class Legs:
    """The workers of one attempt, as reserved. Without `prefill` decode computes the prompt."""

    attempt: int
    prefill: Reservation | None
    decode: Reservation

    @property
    def reservations(self) -> list[Reservation]:
        return [r for r in (self.prefill, self.decode) if r]

    def beacon(self, role: Role) -> Beacon | None:
        """The worker of `role`, as it was when it was chosen."""
        return next((r.beacon for r in self.reservations if r.beacon.role == role), None)


@dataclass(slots=True, eq=False)
class Call:
    """One request from its first dispatch to its last token. `legs` are those of the attempt that was dispatched
    last, `avoid` the workers that an attempt failed on, `refusal` why the last one was not taken."""

    job: Job
    request: Request
    dispatch: "Callable[[Call], Awaitable[None]]"
    legs: Legs | None = None
    avoid: set[tuple[Role, str]] = field(default_factory=set)
    refusal: PacelineError | None = None
    _taken: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tap: Tap | None = None  # while the handler waits
    _clock: Callable[[], float] = time.monotonic  # the event loop's, while the handler waits
    _last: float = 0.0  # when tokens came last, by `_clock`

    @property
    def begun(self) -> bool:
        """Whether tokens were given to the client."""
        return self._taken > 0

    def notify(self) -> None:
        """Something about `request` changed."""
        if self._tap is None or self._news.is_set() or not self._settled_by(self._tap):
            self._news.set()

    def work(self, gateway: str) -> Work:
        """What the next attempt has to do: go on behind the tokens that are merged."""
        return Work(
            request_id=self.job.request_id,
            attempt=self.request.attempt,
            gateway=gateway,
            tenant=self.job.tenant,
            salt=self.job.salt,
            prompt=self.job.prompt,
            sampling=self.job.sampling,
            deadline=self.job.deadline,
            output=list(self.request.tokens),
            low_priority=self.job.low_priority,
        )

    def prompt(self) -> Prompt:
        """What the router needs to know about the next attempt."""
        tokens = len(self.job.prompt) + len(self.request.tokens)
        scored = self.job.sampling.prompt_logprobs is not None
        return Prompt(self.job.model, tokens, self.job.session, frozenset(self.avoid), alone=scored)

    async def next_batch(self, patience: float, tap: Tap | None = None) -> Sequence[int] | None:
        """All tokens that came since the last call: at least one, or none after `patience` seconds without any, or
        None at the end. Dispatches the request, again where an attempt was lost. Raises the error that ended it.

        Until the first batch is given away nothing has been said to the client, and an error comes before tokens. From
        then on `tap` gets the tokens that come while this waits, which spares a step its tasks: waking one for each
        stream takes half of the time that a token costs.
        """
        request = self.request
        while True:
            self._news.clear()
            fresh = len(request.tokens) > self._taken
            if request.error is not None and not (self.begun and fresh):
                raise request.error
            if fresh and (self.begun or request.running or request.over):
                batch = request.tokens[self._taken :]
                self._taken = len(request.tokens)
                return batch
            if request.over:
                return None
            if not request.running:
                await self.dispatch(self)
                continue
            if not await self._wait(patience, tap):
                return ()

    async def _wait(self, patience: float, tap: Tap | None) -> bool:
        """For news that are not for `tap`. False after `patience` seconds without tokens."""
        self._tap = tap if self.begun else None
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()
        try:
            while True:
                due = self._last + patience
                try:
                    async with asyncio.timeout_at(due):
                        await self._news.wait()
                except TimeoutError:
                    if self._last + patience <= due:
                        return False
                else:
                    return True
        finally:
            self._tap = None

    def _settled_by(self, tap: Tap) -> bool:
        """Whether the handler need not hear of what changed."""
        request = self.request
        if not request.running:
            return False
        fresh = len(request.tokens)
        if fresh > self._taken:
            if not tap(request.tokens[self._taken :]):
                return False
            self._taken = fresh
            self._last = self._clock()
        return True

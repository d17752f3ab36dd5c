"""A request in the mesh as its HTTP handler sees it: batches of tokens until the end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from paceline.contracts.errors import PacelineError
from paceline.contracts.messages import Beacon, Role, Sampling, Work
from paceline.gateway.request import Request
from paceline.gateway.reservations import Reservation
from paceline.gateway.router import Prompt


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

    @property
    def begun(self) -> bool:
        """Whether tokens were given to the client."""
        return self._taken > 0

    def notify(self) -> None:
        """Something about `request` changed."""
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
        )

    def prompt(self) -> Prompt:
        """What the router needs to know about the next attempt."""
        tokens = len(self.job.prompt) + len(self.request.tokens)
        return Prompt(self.job.model, tokens, self.job.session, frozenset(self.avoid))

    async def next_batch(self, patience: float) -> Sequence[int] | None:
        """All tokens that came since the last call: at least one, or none after `patience` seconds without any, or
        None at the end. Dispatches the request, again where an attempt was lost. Raises the error that ended it.

        Until the first batch is given away nothing has been said to the client, and an error comes before tokens.
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
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                return ()

"""Every attempt that a worker knows, from dispatch until the gateway confirms its end.

Dispatch is at least once, and a cancel may overtake it; so an attempt is taken once, a repeat is answered like the
first, and one that was cancelled or replaced by a later attempt is refused whenever it arrives.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from paceline.contracts.errors import Cancelled
from paceline.contracts.frames import Logprobs
from paceline.contracts.messages import Done, Failed, Started, Work
from paceline.engine.sequence import Sequence

KEEP_S = 30.0
"""How long an attempt that is over is kept for a resend when no confirmation comes."""

_REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, what it holds here, and everything published for it.

    `tokens` are output tokens `base`, `base` + 1, ..., with their `logprobs` where they were asked for. It is live
    while the worker holds anything for it, which for a prefill worker lasts until the handoff is over and for a decode
    worker until the terminal event.
    """

    work: Work
    sequence: Sequence
    span: Span
    runs_prompt: bool  # and not only what follows it
    store_s: float = 0.0
    handoff_s: float = 0.0
    started: Started | None = None
    base: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    end: Done | Failed | None = None
    settled_at: float | None = None

    @property
    def live(self) -> bool:
        return self.settled_at is None

    def settle(self) -> None:
        """The worker holds nothing for this attempt any more, except its events for a resend."""
        if self.settled_at is None:
            self.settled_at = time.monotonic()
            self.span.end()


class Attempts:
    """The attempts of one worker, at most one live per request."""

    def __init__(self) -> None:
        self._by_request: dict[str, Attempt] = {}
        self._forgotten: OrderedDict[str, int] = (
            OrderedDict()
        )  # request -> highest attempt not to be taken again

    def __len__(self) -> int:
        return len(self._by_request)

    @property
    def live(self) -> list[Attempt]:
        return [a for a in self._by_request.values() if a.live]

    def is_repeat(self, work: Work) -> bool:
        """Whether this very attempt is here already. Raises `Cancelled` when it must not be taken any more."""
        if work.attempt <= self._forgotten.get(work.request_id, 0):
            raise Cancelled(f"attempt {work.attempt} at {work.request_id} was cancelled")
        known = self._by_request.get(work.request_id)
        if known is not None and known.work.attempt > work.attempt:
            raise Cancelled(
                f"attempt {work.attempt} at {work.request_id} was replaced by {known.work.attempt}"
            )
        return known is not None and known.work.attempt == work.attempt

    def add(self, attempt: Attempt) -> Attempt | None:
        """Take an attempt; the earlier one at the same request that it replaces, if any."""
        replaced = self._by_request.get(attempt.work.request_id)
        self._by_request[attempt.work.request_id] = attempt
        return replaced

    def get(self, request_id: str, attempt: int) -> Attempt | None:
        known = self._by_request.get(request_id)
        return known if known is not None and known.work.attempt == attempt else None

    def of(self, sequence: Sequence) -> Attempt | None:
        """The attempt that `sequence` belongs to, unless it has been forgotten."""
        known = self._by_request.get(sequence.request_id)
        return known if known is not None and known.sequence is sequence else None

    def of_gateway(self, gateway: str) -> list[Attempt]:
        return [a for a in self._by_request.values() if a.work.gateway == gateway]

    def forget(self, request_id: str, attempt: int) -> Attempt | None:
        """Drop attempts up to `attempt` and never take them again; the one that was here."""
        self._forgotten[request_id] = max(attempt, self._forgotten.get(request_id, 0))
        self._forgotten.move_to_end(request_id)
        if len(self._forgotten) > _REMEMBERED:
            self._forgotten.popitem(last=False)
        known = self._by_request.get(request_id)
        if known is None or known.work.attempt > attempt:
            return None
        return self._by_request.pop(request_id)

    def expire(self, now: float) -> list[Attempt]:
        """Attempts to be forgotten: over for long without confirmation. `now` in monotonic seconds."""
        return [a for a in self._by_request.values() if a.settled_at and now - a.settled_at > KEEP_S]

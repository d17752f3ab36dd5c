"""The bus as services see it: NATS core semantics, so that tests can swap the server for memory.

Delivery is at most once and in order per publisher and subject. Handlers are plain callbacks on the event loop: they
must not block, and spawn a task for anything that awaits. Several subscriptions may match one subject; each gets it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as it arrives. `reply` is empty unless the sender waits for an answer."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


Handler: TypeAlias = Callable[[Delivery], None]


class Subscription(Protocol):
    async def unsubscribe(self) -> None:
        """Stop at once; messages that were not handled yet are dropped."""

    async def drain(self) -> None:
        """Handle what was sent before, then stop. Senders learn at once that nobody listens any more."""


class Bus(Protocol):
    """Connected for life: after a server restart it reconnects, and publishes of the gap are buffered."""

    @property
    def max_payload(self) -> int:
        """Bytes that one message may carry."""

    @property
    def connected(self) -> bool:
        """False while the server is away."""

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send and forget. Waits only when the outgoing buffer is full.

        Raises `InvalidRequest` when `data` exceeds `max_payload`.
        """

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Delivery:
        """The first answer.

        Raises `Unavailable` at once when nobody listens or the server is away, `TimeoutError` after `timeout` seconds.
        """

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call `handler` for each message on `subject` (`*` and `>` as in NATS) until unsubscribed.

        When this returns the subscription is known to the server: a request sent afterwards by anyone reaches it.
        """

    async def close(self) -> None:
        """Deliver what was received, flush what was published, disconnect."""

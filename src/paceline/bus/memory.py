"""The bus in one process: what the server would do, without one."""

import asyncio
import contextvars
from collections.abc import Mapping

import structlog

from paceline.bus.interface import Bus, Delivery, Handler, Subscription
from paceline.contracts.errors import InvalidRequest, Unavailable

log = structlog.get_logger(__name__)


class MemoryBroker:
    """Carries messages between its clients, which all run on one event loop."""

    def __init__(self, *, max_payload: int = 8 << 20) -> None:
        self.max_payload = max_payload
        self.subscriptions: list[MemorySubscription] = []
        self._inboxes = 0

    def client(self) -> "MemoryBus":
        """A new connection."""
        return MemoryBus(self)

    def deliver(self, delivery: Delivery) -> bool:
        """Hand a message to every subscription that matches; whether there was one."""
        tokens = delivery.subject.split(".")
        receivers = [s for s in self.subscriptions if s.matches(tokens)]
        for receiver in receivers:
            receiver.enqueue(delivery)
        return bool(receivers)

    def new_inbox(self) -> str:
        """A subject that nobody else listens on."""
        self._inboxes += 1
        return f"_INBOX.{self._inboxes}"


class MemorySubscription(Subscription):
    """Calls one handler, in the order of publication and never from within `publish`."""

    def __init__(self, broker: MemoryBroker, subject: str, handler: Handler) -> None:
        self._broker = broker
        self._pattern = subject.split(".")
        self._handler = handler
        # As with a server, nothing of the publisher's context (its span, its log fields) comes along.
        self._context = contextvars.copy_context()
        broker.subscriptions.append(self)

    def matches(self, tokens: list[str]) -> bool:
        """Whether the subject made of `tokens` matches this subscription's pattern."""
        pattern = self._pattern
        if pattern[-1] == ">":
            long_enough, pattern = len(tokens) >= len(pattern), pattern[:-1]
        else:
            long_enough = len(tokens) == len(pattern)
        return long_enough and all(p in ("*", t) for p, t in zip(pattern, tokens, strict=False))

    def enqueue(self, delivery: Delivery) -> None:
        """Call the handler soon."""
        asyncio.get_running_loop().call_soon(self._handle, delivery, context=self._context)

    def _handle(self, delivery: Delivery) -> None:
        if self not in self._broker.subscriptions:
            return
        try:
            self._handler(delivery)
        except Exception:
            log.exception("handler_failed", subject=delivery.subject)

    async def unsubscribe(self) -> None:
        if self in self._broker.subscriptions:
            self._broker.subscriptions.remove(self)

    async def drain(self) -> None:
        # Whatever was enqueued before is handled in this turn of the loop.
        await asyncio.sleep(0)
        await self.unsubscribe()


class MemoryBus(Bus):
    """One client of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._subscriptions: list[MemorySubscription] = []
        self._closed = False

    @property
    def max_payload(self) -> int:
        return self._broker.max_payload

    @property
    def connected(self) -> bool:
        return not self._closed

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self._send(Delivery(subject, data, reply, dict(headers or {})))

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Delivery:
        answer: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        inbox = self._broker.new_inbox()
        subscription = MemorySubscription(
            self._broker, inbox, lambda d: None if answer.done() else answer.set_result(d)
        )
        try:
            if not self._send(Delivery(subject, data, inbox, dict(headers or {}))):
                raise Unavailable(f"nobody listens on {subject}")
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            await subscription.unsubscribe()

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        self._check_open()
        subscription = MemorySubscription(self._broker, subject, handler)
        self._subscriptions.append(subscription)
        return subscription

    async def close(self) -> None:
        for subscription in self._subscriptions:
            await subscription.drain()
        self._closed = True

    def _send(self, delivery: Delivery) -> bool:
        self._check_open()
        if len(delivery.data) > self.max_payload:
            raise InvalidRequest(f"{len(delivery.data)} bytes exceed the bus's limit of {self.max_payload}")
        return self._broker.deliver(delivery)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the bus is closed")

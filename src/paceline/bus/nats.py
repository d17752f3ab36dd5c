"""The bus on a NATS server."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar

import structlog
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsPySubscription

from paceline.bus.interface import Bus, Delivery, Handler, Subscription
from paceline.contracts.errors import InvalidRequest, Unavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_OUTGOING_BYTES = 64 << 20
# Of each subscription; what arrives beyond them is dropped and counted.
_PENDING_MESSAGES = 1 << 16
_PENDING_BYTES = 64 << 20
_FLUSH_S = 5
_CLOSE_S = 5.0


class NatsBus(Bus):
    """One connection. `dropped` counts messages that came faster than their handler took them."""

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self.dropped = 0
        self._client = Client()
        self._subscriptions: set[_NatsSubscription] = set()
        self._on_closed = on_closed
        self._life: Literal["connecting", "open", "closing"] = "connecting"
        self._last_error: Exception | None = None

    @classmethod
    async def connect(
        cls, url: str, *, name: str, timeout: float = 30.0, on_closed: Callable[[], None] = lambda: None
    ) -> "NatsBus":
        """Connect to `url`, nats://token@host:port, waiting for a server that is not up yet.

        `on_closed` is called should the server shut this client out for good, after which nothing works any more.
        Raises `Unavailable` when no server answers within `timeout` seconds, and at once when it refuses the token.
        """
        bus = cls(on_closed)
        address = url.rpartition("@")[2]
        try:
            async with asyncio.timeout(timeout):
                await bus._client.connect(
                    url,
                    name=name,
                    pending_size=_OUTGOING_BYTES,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.25,  # type: ignore[arg-type]  # declared int, used as float
                    ping_interval=5,
                    max_outstanding_pings=2,
                    error_cb=bus._failed,
                    disconnected_cb=bus._disconnected,
                    reconnected_cb=bus._reconnected,
                    closed_cb=bus._closed,
                    lame_duck_mode_cb=bus._lame_duck,
                )
        except (TimeoutError, Unavailable) as e:
            bus._life = "closing"
            await bus._client.close()
            if isinstance(e, Unavailable):
                raise
            reason = f" ({bus._last_error})" if bus._last_error else ""
            raise Unavailable(f"no NATS server at {address} within {timeout:g} s{reason}") from None
        bus._life = "open"
        log.info("bus_connected", server=address, version=str(bus._client.connected_server_version))
        return bus

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        try:
            await self._client.publish(subject, data, reply, dict(headers) if headers else None)
        except errors.Error as e:
            raise self._publish_error(e, data) from e

    async def request(
        self, subject: str, data: bytes, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Delivery:
        # nats-py would buffer it and let the caller wait for the whole timeout.
        if not self._client.is_connected:
            raise Unavailable(f"disconnected from the NATS server, cannot reach {subject}")
        try:
            answer = await _cancellable(
                self._client.request(subject, data, timeout, headers=dict(headers) if headers else None)
            )
        except errors.NoRespondersError:
            raise Unavailable(f"nobody listens on {subject}") from None
        except errors.TimeoutError:
            raise TimeoutError(f"no answer from {subject} within {timeout:g} s") from None
        except errors.Error as e:
            raise self._publish_error(e, data) from e
        return _delivery(answer)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        async def deliver(message: Msg) -> None:
            try:
                handler(_delivery(message))
            except Exception:
                log.exception("handler_failed", subject=message.subject)

        try:
            subscription = await self._client.subscribe(
                subject, cb=deliver, pending_msgs_limit=_PENDING_MESSAGES, pending_bytes_limit=_PENDING_BYTES
            )
        except errors.Error as e:
            raise Unavailable(f"cannot subscribe to {subject}: {e}") from e
        kept = _NatsSubscription(self._client, self._subscriptions, subscription)
        try:
            await self._flush()
        except BaseException as e:
            await kept.unsubscribe()
            if isinstance(e, errors.Error):
                raise Unavailable(f"cannot subscribe to {subject}: {e}") from e
            raise
        return kept

    async def close(self) -> None:
        # Not nats-py's own drain: with a server that hangs it takes longer than its timeout and eats cancellation.
        self._life = "closing"
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*(subscription.drain() for subscription in set(self._subscriptions)))
                if self._client.is_connected:
                    await self._flush()
        except (TimeoutError, errors.Error) as e:
            log.warning("bus_close_incomplete", error=str(e) or type(e).__name__)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()
        except TimeoutError:
            log.warning("bus_close_incomplete", error="the server takes no more data")

    async def _flush(self) -> None:
        """Wait until the server has seen everything so far."""
        # Twice, because nats-py writes its PING before what is still in its buffer.
        await _cancellable(self._client.flush(_FLUSH_S))
        await _cancellable(self._client.flush(_FLUSH_S))

    def _publish_error(self, error: errors.Error, data: bytes) -> Exception:
        if isinstance(error, errors.MaxPayloadError):
            return InvalidRequest(f"{len(data)} bytes exceed the bus's limit of {self.max_payload}")
        return Unavailable(f"the bus takes no messages: {error}")

    async def _failed(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, errors.SlowConsumerError):
            # One call per message: powers of two keep the log readable.
            self.dropped += 1
            if self.dropped.bit_count() == 1:
                log.error("bus_messages_dropped", subject=error.subject, dropped=self.dropped)
        elif self._life == "connecting" and "authorization" in str(error).lower():
            raise Unavailable(f"the NATS server refuses this client: {error}") from error
        elif self._client.is_connected:
            log.warning("bus_error", error=str(error) or type(error).__name__)
        else:
            # Each of several attempts a second; that the server is away was said once.
            log.debug("bus_reconnect_failed", error=str(error) or type(error).__name__)

    async def _disconnected(self) -> None:
        if self._life == "open":
            log.warning("bus_disconnected")

    async def _reconnected(self) -> None:
        log.info("bus_reconnected")

    async def _lame_duck(self) -> None:
        log.warning("bus_server_leaving")

    async def _closed(self) -> None:
        if self._life == "open":
            log.error("bus_closed", error=str(self._last_error))
            self._on_closed()


class _NatsSubscription(Subscription):
    """Keeps itself in `living` until it has ended."""

    def __init__(
        self, client: Client, living: "set[_NatsSubscription]", subscription: NatsPySubscription
    ) -> None:
        self._client = client
        self._living = living
        self._subscription = subscription
        living.add(self)

    async def unsubscribe(self) -> None:
        self._living.discard(self)
        try:
            await self._subscription.unsubscribe()
        except (errors.ConnectionClosedError, errors.ConnectionDrainingError, errors.BadSubscriptionError):
            # It has ended already, with its connection or before.
            return

    async def drain(self) -> None:
        # While the server is away nothing can come from it, and nats-py would wait for its answer.
        if not self._client.is_connected:
            await self.unsubscribe()
            return
        self._living.discard(self)
        try:
            await self._subscription.drain()  # type: ignore[no-untyped-call]
        except errors.Error:
            await self.unsubscribe()


async def _cancellable(call: Coroutine[Any, Any, T]) -> T:
    """Python 3.11's wait_for, on which nats-py relies, loses a cancellation that comes together with the result."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    result = await call
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def _delivery(message: Msg) -> Delivery:
    return Delivery(message.subject, message.data, message.reply, message.headers or {})

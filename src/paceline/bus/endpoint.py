"""One endpoint of one worker: from the bytes of a request to those of its answer."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Any, TypeVar

import msgspec
import structlog
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from paceline.bus.identity import Identity
from paceline.bus.interface import Bus, Delivery
from paceline.bus.micro import Counters, error_headers
from paceline.contracts.codec import encode
from paceline.contracts.errors import Busy, InternalError, PacelineError, Unavailable
from paceline.contracts.messages import Refused
from paceline.contracts.subjects import Endpoint
from paceline.telemetry import traces

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
R = TypeVar("R", bound=msgspec.Struct)


class ServedEndpoint:
    """An `Endpoint` with its handler, its subject and its counters."""

    def __init__(
        self, bus: Bus, identity: Identity, endpoint: Endpoint[Q, R], handler: Callable[[Q], Awaitable[R]]
    ) -> None:
        self.endpoint: Endpoint[Any, Any] = endpoint
        self.subject = endpoint.subject(identity.role, identity.worker)
        self.counters = Counters()
        self._bus = bus
        self._handler: Callable[[Any], Awaitable[msgspec.Struct]] = handler
        # Names the verb and not the worker, so that spans of one kind can be compared.
        self._span_name = f"process paceline.{identity.role}.{endpoint.verb}"

    async def answer(self, delivery: Delivery) -> None:
        """Run the handler inside a span that continues the sender's trace, and reply. Raises only `CancelledError`."""
        self.counters.requests += 1
        began = perf_counter_ns()
        with self._span(delivery):
            try:
                # An operator sends `nats req <subject> ''` to an endpoint that needs no fields.
                reply = await self._handler(self.endpoint.decode_request(delivery.data or b"{}"))
            except PacelineError as e:
                await self._refuse(delivery, e)
            except asyncio.CancelledError:
                await self._refuse(delivery, Unavailable("the worker is leaving"))
                raise
            except Exception as e:
                log.exception("handler_failed", subject=self.subject)
                await self._refuse(delivery, InternalError(f"{type(e).__name__} in {self.endpoint.verb}"))
            else:
                await self._send(delivery, reply)
            finally:
                self.counters.busy_ns += perf_counter_ns() - began

    def _span(self, delivery: Delivery) -> AbstractContextManager[object]:
        # Whoever sends no trace calls at every step: that gets no span.
        if "traceparent" not in delivery.headers:
            return nullcontext()
        return traces.tracer().start_as_current_span(
            self._span_name,
            context=traces.extract(delivery.headers),
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "nats",
                "messaging.operation.type": "process",
                "messaging.destination.name": self.subject,
            },
        )

    async def _refuse(self, delivery: Delivery, error: PacelineError) -> None:
        self.counters.errors += 1
        self.counters.last_error = f"{error.code}: {error.message}"
        span = trace.get_current_span()
        span.set_attribute("error.type", error.code)
        span.set_status(trace.StatusCode.ERROR, error.message)
        retry_after_s = error.retry_after_s if isinstance(error, Busy) else 0.0
        refused = Refused(code=error.code, message=error.message, retry_after_s=retry_after_s)
        await self._send(delivery, refused, error_headers(error))

    async def _send(
        self, delivery: Delivery, reply: msgspec.Struct, headers: Mapping[str, str] | None = None
    ) -> None:
        if not delivery.reply:
            return
        try:
            await self._bus.publish(delivery.reply, encode(reply), headers=headers)
        except PacelineError as e:
            log.error("reply_lost", subject=self.subject, error=e.message)

"""OpenTelemetry traces: ids always, spans exported only where OTEL_EXPORTER_OTLP_ENDPOINT points."""

import os
import threading
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# The default of 2048 overflows silently when a burst of requests ends at once.
_QUEUE = 16384
_FLUSH_S = 3.0

_propagator = TraceContextTextMapPropagator()


def configure(service_name: str, *, instance: str = "") -> None:
    """Set the process's tracer up, once; `instance` tells the workers of a service apart. OTEL_* variables mean what
    they mean everywhere.

    Without an endpoint nothing is recorded, but traces still have ids (23 us a request), so that logs of all
    services can be joined.
    """
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False))
        return
    # Imported here because protobuf and requests cost every start 50 ms.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": service_name, "service.instance.id": instance})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=_QUEUE))
    trace.set_tracer_provider(provider)


def shutdown() -> None:
    """Export what is left, for at most `_FLUSH_S` seconds, and stop. Blocks."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        # The SDK would wait for 30 seconds when nobody answers.
        flush = threading.Thread(target=provider.shutdown, daemon=True)
        flush.start()
        flush.join(_FLUSH_S)


def tracer() -> trace.Tracer:
    """The tracer of all spans of this project."""
    return trace.get_tracer("paceline")


def inject() -> dict[str, str]:
    """The current span as headers; empty outside a span."""
    headers: dict[str, str] = {}
    _propagator.inject(headers)
    return headers


def extract(headers: Mapping[str, str]) -> Context:
    """The context that `headers` carry, to be the parent of a span; an empty one if they carry none."""
    return _propagator.extract(headers, Context())

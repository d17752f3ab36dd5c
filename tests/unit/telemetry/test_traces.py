"""Traces have ids always and go somewhere only when told to."""

import socket
import threading
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.telemetry import traces
from tests.otlp import otlp_sink


def test_without_an_endpoint_spans_have_ids_and_record_nothing(no_tracer: None) -> None:
    traces.configure("paceline-test")
    with traces.tracer().start_as_current_span("outer") as outer:
        (header,) = traces.inject().values()
        assert not outer.is_recording()
        context = outer.get_span_context()
    version_and_ids, flags = header.rsplit("-", 1)
    assert version_and_ids == f"00-{context.trace_id:032x}-{context.span_id:016x}"
    assert int(flags, 16) & trace.TraceFlags.SAMPLED == 0
    assert context.is_valid
    traces.shutdown()


def test_headers_carry_the_trace_to_the_other_side(spans: InMemorySpanExporter) -> None:
    with traces.tracer().start_as_current_span("near"):
        headers = traces.inject()
    assert list(headers) == ["traceparent"]
    with traces.tracer().start_as_current_span("far", context=traces.extract(headers)):
        pass
    near, far = spans.get_finished_spans()
    assert far.parent is not None
    assert (far.parent.span_id, far.context.trace_id) == (near.context.span_id, near.context.trace_id)


def test_outside_a_span_nothing_is_injected() -> None:
    assert traces.inject() == {}


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-zz-1-01"}, {"other": "x"}])
def test_headers_without_a_trace_do_not_inherit_the_current_one(
    spans: InMemorySpanExporter, headers: dict[str, str]
) -> None:
    with traces.tracer().start_as_current_span("near"):
        span = trace.get_current_span(traces.extract(headers))
    assert not span.get_span_context().is_valid


def test_an_endpoint_receives_the_spans_at_the_latest_on_shutdown(
    no_tracer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with otlp_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.endpoint)
        traces.configure("paceline-test", instance="w1")
        with traces.tracer().start_as_current_span("work", attributes={"tokens": 3}):
            pass
        traces.shutdown()
        (span,) = sink.services["paceline-test"]
    assert (span.name, span.attributes[0].value.int_value) == ("work", 3)


def test_shutdown_does_not_wait_for_an_endpoint_that_hangs(
    no_tracer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_FLUSH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hanging.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        traces.configure("paceline-test")
        traces.tracer().start_span("work").end()
        began = time.monotonic()
        traces.shutdown()
        assert time.monotonic() - began < 0.9
        # It must not write its complaint into the next test.
        for thread in threading.enumerate():
            if thread.name.startswith("OtelBatch"):
                thread.join()

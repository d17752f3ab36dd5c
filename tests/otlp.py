"""A sink for OTLP over HTTP, to see what a process exports."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpSink:
    """`services` maps each service.name to the spans that arrived from it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.services: dict[str, list[Span]] = {}

    def receive(self, body: bytes) -> None:
        """Take one export request in."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {a.key: a.value.string_value for a in group.resource.attributes}
            spans = self.services.setdefault(attributes["service.name"], [])
            for scope in group.scope_spans:
                spans.extend(scope.spans)


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Receives spans while it is open; give its `endpoint` to OTEL_EXPORTER_OTLP_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sink.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink = OtlpSink(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

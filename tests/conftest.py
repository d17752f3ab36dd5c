"""What every test may rely on: no settings of the developer's shell, a server of its own, no task left behind."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util._once import Once

from paceline.bus.memory import MemoryBroker
from paceline.bus.server import NatsServer


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(("PACELINE_", "OTEL_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
async def no_task_survives(clean_environment: None) -> AsyncIterator[None]:
    """A task that outlives its test belongs to something that was not closed."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        # What was cancelled as the test ended may still have to notice.
        _, left = await asyncio.wait(left, timeout=1)
    assert not left, f"tasks left behind: {sorted(str(t) for t in left)}"


@pytest.fixture
async def nats_server() -> AsyncIterator[NatsServer]:
    """A real server on a free port, running."""
    server = NatsServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def memory_broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def no_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process: the tracer can be configured once more."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


@pytest.fixture
def spans(no_tracer: None) -> InMemorySpanExporter:
    """Every span that ends during the test: `get_finished_spans()`."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter

"""One trace per request, from the client's own span to the workers'."""

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from structlog.testing import capture_logs

from paceline.bus.memory import MemoryBroker
from paceline.contracts.messages import CachedTokens
from tests.service.gateway_mesh import LONG, scripted_mesh
from tests.service.gateway_model import write_model
from tests.service.gateway_worker import Script

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def parent_of(span: ReadableSpan, spans: dict[str, ReadableSpan]) -> str:
    assert span.parent is not None
    return next(name for name, s in spans.items() if s.context and s.context.span_id == span.parent.span_id)


async def test_a_request_is_one_trace(
    memory_broker: MemoryBroker, model: Path, spans: InMemorySpanExporter
) -> None:
    script = Script(cached=CachedTokens(device=64))
    async with scripted_mesh(memory_broker, model, script) as mesh:
        url, headers = f"{mesh.url}/v1/chat/completions", {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = mesh.body(LONG, max_tokens=3, seed=5, temperature=0.5)
        async with mesh.http.post(url, json=body, headers=headers) as response:
            answer = await response.json()
        await mesh.idle()
    by_name = {s.name: s for s in spans.get_finished_spans()}
    server = by_name["POST /v1/chat/completions"]
    assert server.kind is SpanKind.SERVER
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == PARENT
    assert {f"{s.context.trace_id:032x}" for s in by_name.values() if s.context} == {TRACE}
    assert parent_of(by_name["route"], by_name) == server.name
    assert parent_of(by_name["dispatch"], by_name) == server.name
    for verb in ("prefill.prefill", "decode.generate"):
        consumer = by_name[f"process paceline.{verb}"]
        assert consumer.kind is SpanKind.CONSUMER
        assert parent_of(consumer, by_name) == "dispatch"
    attributes = dict(server.attributes or {})
    assert attributes["paceline.request_id"] == answer["id"].removeprefix("chatcmpl-")
    assert {k: v for k, v in attributes.items() if k.startswith(("gen_ai", "http"))} == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": False,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 5,
        "gen_ai.response.id": answer["id"].removeprefix("chatcmpl-"),
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.response.time_to_first_chunk": attributes["gen_ai.response.time_to_first_chunk"],
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 64,
    }


async def test_a_refusal_names_its_error_and_no_prompt_is_traced_or_logged(
    memory_broker: MemoryBroker, model: Path, spans: InMemorySpanExporter
) -> None:
    async with scripted_mesh(memory_broker, model, Script()) as mesh:
        with capture_logs() as lines:
            async with mesh.post("a secret", temperature=3) as response:
                assert response.status == 400
            async with mesh.post("a secret") as response:
                assert response.status == 200
        await mesh.idle()
    refused = spans.get_finished_spans()[0]
    assert dict(refused.attributes or {})["error.type"] == "invalid_value"
    assert "secret" not in repr([dict(s.attributes or {}) for s in spans.get_finished_spans()]) + repr(lines)

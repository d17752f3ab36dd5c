"""One trace per request through all five services, as an OTLP collector receives it."""

import signal
from pathlib import Path

import pytest

from tests.otlp import otlp_sink
from tests.system.harness import paceline_up

pytestmark = pytest.mark.slow

LONG = "Who pulls at the front of the line, and for how long? " * 20
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_request_is_one_trace_across_the_services(tiny: Path, tmp_path: Path) -> None:
    with otlp_sink() as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}
        async with paceline_up(tiny, tmp_path, env=env) as system:
            await system.acquainted()
            system.session.headers["traceparent"] = f"00-{TRACE}-{PARENT}-01"
            reply = await system.ask(LONG, max_tokens=30)
            assert reply.finish_reason == "length"
            system.process.send_signal(signal.SIGTERM)
            await system.process.wait()
    trace = bytes.fromhex(TRACE)
    spans = {service: [s for s in found if s.trace_id == trace] for service, found in sink.services.items()}
    assert {service for service, found in spans.items() if found} == {
        f"paceline-{role}" for role in ("gateway", "prefill", "kvstore", "decode", "drafter")
    }
    everyone = [span for found in spans.values() for span in found]
    assert len(everyone) < 30, "a span per token or step"
    ids = {span.span_id for span in everyone}
    (root,) = (span for span in everyone if span.parent_span_id not in ids)
    assert (root.name, root.parent_span_id.hex()) == ("POST /v1/chat/completions", PARENT)
    (prompt,) = (s for s in spans["paceline-prefill"] if any(e.name == "first_token" for e in s.events))
    figures = {a.key: a.value.int_value for a in prompt.attributes}
    assert figures["gen_ai.usage.input_tokens"] == reply.usage["prompt_tokens"]
    assert figures["gen_ai.usage.cache_read.input_tokens"] == 0

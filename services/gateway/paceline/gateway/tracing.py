"""The span attributes of a request for tokens, by OpenTelemetry's conventions for generative AI."""

from collections.abc import Sequence

from opentelemetry.util.types import AttributeValue

from paceline.contracts.messages import Sampling
from paceline.gateway.answer import Head, Usage


def request_attributes(model: str, sampling: Sampling, *, stream: bool) -> dict[str, AttributeValue]:
    """What was asked for, without its content."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
    }


def response_attributes(
    head: Head, reasons: Sequence[str], usage: Usage, ttft_s: float
) -> dict[str, AttributeValue]:
    """What came of it."""
    return {
        "gen_ai.response.id": head.request_id,
        "gen_ai.response.model": head.model,
        "gen_ai.response.finish_reasons": list(reasons),
        "gen_ai.response.time_to_first_chunk": ttft_s,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached.total,
    }

"""The body of POST /v1/responses: what it may say, and where exactly it is wrong.

Unknown fields are ignored, because clients send many; a known one that would change the answer and is not supported is
refused by name. Beyond OpenAI's fields: presence_penalty, frequency_penalty, as in the Open Responses specification.
"""

import secrets
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, JsonSchema, Shape
from paceline.gateway.dialects.chat_tools import MAX_TOOLS, schema_of
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.dialects.openai_fields import LEAST_TEMPERATURE, check_ranges
from paceline.gateway.dialects.responses_tools import Choice, ToolSpec

MAX_ITEMS = 10_000
MAX_METADATA = 16
MAX_ALTERNATIVES = 20

SCHEMA = "text.format.schema"
"""Where the schema of an answer lies."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_WITH_LOGPROBS = "message.output_text.logprobs"

# Efforts with which a model that can think or not does not.
_WITHOUT_THINKING = ("none", "minimal")

# Fields that are never honoured stay `Raw`, as only their presence counts.
_ABSENT = (b"", b"null")
_REFUSED: dict[str, tuple[tuple[bytes, ...], str]] = {
    "background": ((*_ABSENT, b"false"), "Responses in the background are not supported: use batches"),
    "conversation": (_ABSENT, "Conversations are not supported: use previous_response_id"),
    "prompt": (_ABSENT, "Stored prompts are not supported"),
    "moderation": (_ABSENT, "Moderation is not supported"),
    "context_management": ((*_ABSENT, b"[]"), "Context is not compacted by this server"),
}

_RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_output_tokens": (1, NO_LIMIT),
    "max_tool_calls": (1, NO_LIMIT),
    "top_logprobs": (0, MAX_ALTERNATIVES),
}


class Format(msgspec.Struct, frozen=True):
    """What the text must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Raw = Raw()
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """How the text shall be."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    """How much the model shall think. Summaries may be asked for and are never made."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class CacheOptions(msgspec.Struct, frozen=True):
    """Hints for the prompt cache; `prewarm` asks for no answer at all."""

    prewarm: bool | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came, validated by `read_request`. None is the same as absent everywhere."""

    model: str | None = None
    input: str | Annotated[list[Raw], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    background: Raw = Raw()
    conversation: Raw = Raw()
    prompt: Raw = Raw()
    moderation: Raw = Raw()
    context_management: Raw = Raw()

    @property
    def logprobs(self) -> int | None:
        """How many alternatives each token of the text comes with, None for no log probabilities."""
        if _WITH_LOGPROBS in (self.include or ()) or self.top_logprobs:
            return self.top_logprobs or 0
        return None

    @property
    def low_priority(self) -> bool:
        return self.service_tier == "flex"

    def options(self) -> dict[str, Any]:
        """Variables of the template."""
        effort = self.reasoning.effort if self.reasoning else None
        if effort is None:
            return {}
        return {"reasoning_effort": effort, "enable_thinking": effort not in _WITHOUT_THINKING}

    def shape(self) -> Shape | None:
        """Raises `InvalidRequest` for a schema that is no object."""
        match self.text.format if self.text else None:
            case Format(type="json_object"):
                return JsonSchema({"type": "object"})
            case Format(type="json_schema", schema=schema):
                return JsonSchema(schema_of(schema, SCHEMA))
        return None

    def sampling(self) -> Sampling:
        """A seed is drawn here, so that a request that moves to another worker keeps its random numbers."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(
            max_tokens=NO_LIMIT if self.max_output_tokens is None else self.max_output_tokens,
            temperature=temperature if temperature >= LEAST_TEMPERATURE else 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=secrets.randbits(63),
        )


_decoder = msgspec.json.Decoder(ResponsesRequest)


def read_request(body: bytes) -> ResponsesRequest:
    """Raises `InvalidRequest` whose `param` is the path of the first thing that is wrong, but for items and tools."""
    request = decode(_decoder, body)
    for field, (nothing, message) in _REFUSED.items():
        if bytes(getattr(request, field)) not in nothing:
            raise InvalidRequest(message, param=field)
    if request.prompt_cache_options is not None and request.prompt_cache_options.prewarm:
        message = "A cache is not filled without an answer"
        raise InvalidRequest(message, param="prompt_cache_options.prewarm")
    if request.input is None and request.previous_response_id is None:
        raise InvalidRequest("input is needed, or previous_response_id", param="input")
    check_ranges(request, _RANGES)
    return request

"""The bodies of POST /v1/messages and of /v1/messages/count_tokens, and what they ask for.

Unknown fields are ignored, because each version of a client sends new ones; so are those that change nothing here, such
as service_tier, context_management and betas.
"""

import re
import secrets
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT, Ask, Conversation, JsonSchema
from paceline.gateway.dialects.anthropic_blocks import MAX_TURNS, Texts, Turn
from paceline.gateway.dialects.anthropic_history import conversation
from paceline.gateway.dialects.anthropic_tools import Choice, ToolSpec, tool_use
from paceline.gateway.dialects.chat_tools import MAX_TOOLS, schema_of
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.dialects.openai_fields import LEAST_TEMPERATURE, check_stops

MAX_STOPS = 64

# Templates know three.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class ThinkingEnabled(msgspec.Struct, frozen=True, tag_field="type", tag="enabled"):
    """Think, for about so many tokens: no model here can be held to it, but for max_tokens."""

    budget_tokens: Annotated[int, Meta(ge=1)]


class ThinkingAdaptive(msgspec.Struct, frozen=True, tag_field="type", tag="adaptive"):
    """Think as much as it takes."""


class ThinkingBetweenTools(msgspec.Struct, frozen=True, tag_field="type", tag="between_tools"):
    """Think between calls as well."""


class ThinkingDisabled(msgspec.Struct, frozen=True, tag_field="type", tag="disabled"):
    """Answer at once."""


Thinking: TypeAlias = ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled


class OutputFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """The schema that the answer's text must follow."""

    schema: Raw


class OutputConfig(msgspec.Struct, frozen=True):
    """How hard to try, and what to write."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, frozen=True):
    """Whom a request is for."""

    user_id: str | None = None


class PromptBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is made of: all that count_tokens takes. None is the same as absent everywhere."""

    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_TURNS)]
    system: Texts | None = None
    tools: Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Raw] | None = None

    def ask(self, sampling: Sampling) -> Ask:
        """Raises `InvalidRequest` for what cannot be honoured."""
        if self.mcp_servers:
            raise InvalidRequest("This server calls no MCP servers: offer their tools", param="mcp_servers")
        config = self.output_config or OutputConfig()
        return Ask(
            model=self.model,
            prompts=(Conversation(conversation(self.system, self.messages), self._options(config)),),
            sampling=sampling,
            tools=tool_use(self.tools, self.tool_choice),
            shape=self._shape(config),
        )

    def _shape(self, config: OutputConfig) -> JsonSchema | None:
        if config.format is not None:
            return JsonSchema(schema_of(config.format.schema, "output_config.format.schema"))
        if self.output_format is not None:
            return JsonSchema(schema_of(self.output_format.schema, "output_format.schema"))
        return None

    def _options(self, config: OutputConfig) -> dict[str, Any]:
        """Variables of the template. As with Anthropic's models, who does not ask for thinking gets none."""
        thinks = self.thinking is not None and not isinstance(self.thinking, ThinkingDisabled)
        options: dict[str, Any] = {"enable_thinking": thinks}
        if config.effort is not None:
            options["reasoning_effort"] = _EFFORTS[config.effort]
        return options


class MessagesBody(PromptBody, frozen=True, kw_only=True):
    """A request for an answer."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    stream: bool | None = None

    def sampling(self) -> Sampling:
        """The seed is drawn here, so that a request that moves to another worker keeps its random numbers."""
        temperature = 1.0 if self.temperature is None else self.temperature
        return Sampling(
            max_tokens=min(self.max_tokens, NO_LIMIT),
            temperature=0.0 if temperature < LEAST_TEMPERATURE else temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=secrets.randbits(63),
        )


class _ClaudeCodeUser(msgspec.Struct, frozen=True):
    """What Claude Code writes into metadata.user_id, as JSON."""

    session_id: str


_Body = TypeVar("_Body", bound=PromptBody)
_messages = msgspec.json.Decoder(MessagesBody)
_prompt = msgspec.json.Decoder(PromptBody)
_user = msgspec.json.Decoder(_ClaudeCodeUser)


def parse_messages(body: bytes) -> Ask:
    """Raises `InvalidRequest` whose `param` is the path of the first thing that is wrong."""
    request = _decode(_messages, body)
    stops = tuple(request.stop_sequences or ())
    check_stops(stops, "stop_sequences", MAX_STOPS)
    return replace(
        request.ask(request.sampling()),
        stops=stops,
        stream=bool(request.stream),
        cache_key=_session(request.metadata.user_id) if request.metadata else None,
    )


def parse_count(body: bytes) -> Ask:
    """For count_tokens, whose prompt is that of a request with the same fields. Raises as `parse_messages` does."""
    return _decode(_prompt, body).ask(Sampling(max_tokens=NO_LIMIT))


def _decode(decoder: "msgspec.json.Decoder[_Body]", body: bytes) -> _Body:
    try:
        return decode(decoder, body)
    except InvalidRequest as e:
        block = re.search(r"Invalid value '([^']{1,64})'", e.message)
        if block and re.search(r"(content|system)\[\d+\]\.type$", e.param or ""):
            message = f"Content blocks of type {block[1]!r} are not supported here"
            raise InvalidRequest(message, param=e.param) from e
        raise


def _session(user_id: str | None) -> str | None:
    try:
        return _user.decode(user_id or "").session_id
    except (msgspec.DecodeError, RecursionError):
        return user_id

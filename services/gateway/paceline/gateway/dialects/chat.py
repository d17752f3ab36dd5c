"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, field

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask, Conversation
from paceline.gateway.deltas import Answer
from paceline.gateway.dialect import Renderer
from paceline.gateway.dialects.chat_answer import completion
from paceline.gateway.dialects.chat_messages import (
    MAX_MESSAGES,
    ChatMessage,
    check_messages,
    conversation,
    template_options,
)
from paceline.gateway.dialects.chat_stream import Chunks
from paceline.gateway.dialects.chat_tools import MAX_TOOLS, Choice, ResponseFormat, ToolSpec, shape, tool_use
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.dialects.openai_fields import OpenAiFields, check_fields, check_ranges
from paceline.gateway.errors import Problem

MAX_ALTERNATIVES = 20

# Fields whose content does not matter stay `Raw`: to build millions of empty lists takes a second.
_ABSENT = (b"", b"null")
_EMPTY = (*_ABSENT, b"[]")
_NO_CHOICE = (*_ABSENT, b'"none"', b'"auto"')
_ONLY_TEXT = (*_EMPTY, b'["text"]')

# Efforts with which a model that can think or not does not.
_WITHOUT_THINKING = ("none", "minimal")


class ChatRequest(OpenAiFields, frozen=True, kw_only=True):
    """A request as it came, validated by `parse`."""

    messages: Annotated[list[ChatMessage], Meta(max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = None
    tools: Annotated[list[ToolSpec], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: Raw = field(default_factory=Raw)
    functions: Raw = field(default_factory=Raw)
    function_call: Raw = field(default_factory=Raw)
    modalities: Raw = field(default_factory=Raw)
    web_search_options: Raw = field(default_factory=Raw)

    @property
    def token_limit(self) -> int | None:
        """Tokens that the answer may have, if the client said so; the newer of the two names wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def options(self) -> dict[str, Any]:
        """Variables of the template."""
        options = template_options(self.chat_template_kwargs)
        if self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
            options.setdefault("enable_thinking", self.reasoning_effort not in _WITHOUT_THINKING)
        return options

    def ask(self) -> Ask:
        return Ask(
            model=self.model,
            prompts=(Conversation(conversation(self.messages), self.options()),),
            sampling=self.sampling(self.token_limit),
            choices=self.n or 1,
            stops=self.stops,
            tools=tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls is not False),
            shape=shape(self.response_format),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            stream=bool(self.stream),
            draft=self.draft is not False,
            cache_key=self.prompt_cache_key,
            low_priority=self.low_priority,
        )


class SpokenChat:
    """A `Spoken`."""

    def __init__(self, request: ChatRequest) -> None:
        self._request = request
        self.ask = request.ask()

    def renderer(self, head: Head) -> Renderer:
        return Chunks(
            head,
            choices=self.ask.choices,
            include_usage=self._request.include_usage,
            logprobs=self.ask.logprobs is not None,
        )

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        return completion(head, answers, usage, logprobs=self.ask.logprobs is not None)


class Chat:
    """A `Dialect`."""

    name = "chat"

    def parse(self, body: bytes, *, vocab: int) -> SpokenChat:
        request = decode(_decoder, body)
        _check_unsupported(request)
        check_messages(request.messages)
        check_fields(request, vocab)
        check_ranges(request, _RANGES)
        if request.top_logprobs is not None and not request.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
        return SpokenChat(request)

    def problem(self, problem: Problem, request_id: str) -> Any:
        return problem.body()


CHAT = Chat()

_decoder = msgspec.json.Decoder(ChatRequest)
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "top_logprobs": (0, MAX_ALTERNATIVES),
}


def _check_unsupported(request: ChatRequest) -> None:
    for name, nothing, message in (
        ("functions", _EMPTY, "Functions are not supported by this server: use tools"),
        ("function_call", _NO_CHOICE, "Functions are not supported by this server: use tool_choice"),
        ("modalities", _ONLY_TEXT, "Only text is supported"),
        ("web_search_options", _ABSENT, "This server cannot search the web"),
    ):
        if _compact(getattr(request, name)) not in nothing:
            raise InvalidRequest(message, param=name)


def _compact(value: Raw) -> bytes:
    return bytes(value).translate(None, b" \t\r\n")

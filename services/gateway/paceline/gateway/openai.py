"""The body of POST /v1/chat/completions: what it may say, and where exactly it is wrong.

Unknown fields are ignored, because clients send many; a known one that would change the answer and is not supported is
refused by name. Beyond OpenAI's fields: top_k, min_p, repetition_penalty, ignore_eos, stop_token_ids, draft.
"""

import re
import secrets
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling

MAX_STOPS = 4
MAX_STOP_CHARS = 4096
MAX_STOP_TOKENS = 1024
MAX_BIASES = 4096
MAX_MESSAGES = 10_000
MAX_PARTS = 10_000
# Below it logits divided by the temperature overflow; such an answer is greedy anyway.
LEAST_TEMPERATURE = 1e-5

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

# Inclusive bounds; None is no bound.
_RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "n": (1, 1),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "seed": (-(2**63), 2**63 - 1),
}
_NOT_ZERO = ("top_p",)

# Fields that go to `Sampling` under the same name.
_SAMPLED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


# Fields whose content does not matter stay `Raw`: to build millions of empty lists takes a second.
_ABSENT = (b"", b"null")
_NO_TOOLS = (*_ABSENT, b"[]")
_NO_CHOICE = (*_ABSENT, b'"none"', b'"auto"')
_ONLY_TEXT = (*_ABSENT, b"[]", b'["text"]')


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: str
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    tool_calls: Raw = Raw()


class StreamOptions(msgspec.Struct, frozen=True):
    """Options that only a streamed answer has."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """What shape the answer shall have."""

    type: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came, validated by `parse`. None is the same as absent everywhere."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float], Meta(max_length=MAX_BIASES)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    draft: bool | None = None
    prompt_cache_key: str | None = None
    tools: Raw = Raw()
    tool_choice: Raw = Raw()
    functions: Raw = Raw()
    function_call: Raw = Raw()
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: Raw = Raw()
    audio: Raw = Raw()

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """Tokens that the answer may have, if the client said so; the newer of the two names wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def conversation(self) -> list[dict[str, str]]:
        """The messages for a chat template: content as one string, parts joined by newlines."""
        return [{"role": _ROLES[m.role], "content": _text(m)} for m in self.messages]

    def sampling(self, room: int) -> Sampling:
        """How to sample with `room` tokens left in the context. A missing seed is drawn here, so that a request
        that moves to another worker keeps its random numbers."""
        chosen = {name: value for name in _SAMPLED if (value := getattr(self, name)) is not None}
        if chosen.get("temperature", 1.0) < LEAST_TEMPERATURE:
            chosen["temperature"] = 0.0
        return Sampling(
            **chosen,
            max_tokens=min(room, self.token_limit or room),
            logit_bias=self.logit_bias or {},
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**63,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


_decoder = msgspec.json.Decoder(ChatRequest)


def parse(body: bytes, *, vocab: int) -> ChatRequest:
    """Decode and validate. Raises `InvalidRequest` whose `param` is the path of the first thing that is wrong."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as e:
        raise InvalidRequest(f"Invalid request body: {e}", param=_path(str(e))) from e
    except msgspec.DecodeError as e:
        raise InvalidRequest(f"The body is not valid JSON: {e}") from e
    except RecursionError as e:
        raise InvalidRequest("The body is nested too deeply") from e
    _check_unsupported(request)
    _check_messages(request)
    _check_ranges(request)
    _check_tokens(request, vocab)
    _check_stops(request)
    return request


def _path(error: str) -> str | None:
    """The field that a msgspec error names, as in `messages[0].content`."""
    at = re.search(r"`\$\.([^`]+)`", error)
    missing = re.search(r"missing required field `([^`]+)`", error)
    path = [at[1].removesuffix("[...]")] if at else []
    return ".".join(path + ([missing[1]] if missing else [])) or None


def _check_unsupported(request: ChatRequest) -> None:
    if _says(request.tools, _NO_TOOLS) and _compact(request.tool_choice) != b'"none"':
        raise InvalidRequest("Tools are not supported by this server yet", param="tools")
    if _says(request.tool_choice, _NO_CHOICE):
        raise InvalidRequest("tool_choice needs tools, which are not supported yet", param="tool_choice")
    if _says(request.functions, _NO_TOOLS):
        raise InvalidRequest("Functions are not supported by this server", param="functions")
    if _says(request.function_call, _NO_CHOICE):
        raise InvalidRequest("Functions are not supported by this server", param="function_call")
    if request.response_format is not None and request.response_format.type != "text":
        raise InvalidRequest(
            'Only response_format {"type": "text"} is supported yet', param="response_format"
        )
    if request.logprobs:
        raise InvalidRequest("Log probabilities are not supported yet", param="logprobs")
    if request.top_logprobs:
        raise InvalidRequest("Log probabilities are not supported yet", param="top_logprobs")
    if _says(request.audio, _ABSENT):
        raise InvalidRequest("Only text is supported", param="audio")
    if _says(request.modalities, _ONLY_TEXT):
        raise InvalidRequest("Only text is supported", param="modalities")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")


def _says(field: Raw, nothing: tuple[bytes, ...]) -> bool:
    """Whether a field holds anything else than one of the forms that ask for nothing."""
    return _compact(field) not in nothing


def _compact(field: Raw) -> bytes:
    return bytes(field).translate(None, b" \t\r\n")


def _check_messages(request: ChatRequest) -> None:
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    for i, message in enumerate(request.messages):
        at = f"messages[{i}]"
        calls = _says(message.tool_calls, _NO_TOOLS)
        if message.role in ("tool", "function") or calls:
            param = f"{at}.tool_calls" if calls else f"{at}.role"
            raise InvalidRequest("Tools are not supported by this server yet", param=param)
        if message.role not in _ROLES:
            roles = ", ".join(_ROLES)
            raise InvalidRequest(f"{message.role!r} is not one of {roles}", param=f"{at}.role")
        if message.content is None and message.role != "assistant":
            raise InvalidRequest("content may be null for assistant messages only", param=f"{at}.content")
        if isinstance(message.content, list):
            _check_parts(message.content, f"{at}.content")


def _check_parts(parts: list[Part], at: str) -> None:
    for i, part in enumerate(parts):
        if part.type != "text":
            raise InvalidRequest(f"Content of type {part.type!r} is not supported", param=f"{at}[{i}].type")
        if part.text is None:
            raise InvalidRequest("A text part needs text", param=f"{at}[{i}].text")


def _check_ranges(request: ChatRequest) -> None:
    for name, (low, high) in _RANGES.items():
        value = getattr(request, name)
        if value is None:
            continue
        below = low is not None and (value < low or (value == low and name in _NOT_ZERO))
        if below or (high is not None and value > high):
            raise InvalidRequest(f"{name} must be {_interval(name)}, got {value}", param=name)


def _interval(name: str) -> str:
    low, high = _RANGES[name]
    if low == high:
        return f"{low}"
    lower = "greater than" if name in _NOT_ZERO else "at least"
    return f"{lower} {low}" if high is None else f"{lower} {low} and at most {high}"


def _check_tokens(request: ChatRequest, vocab: int) -> None:
    for token, bias in (request.logit_bias or {}).items():
        if not 0 <= token < vocab:
            raise InvalidRequest(f"Token {token} is not in the vocabulary of {vocab}", param="logit_bias")
        if not -100 <= bias <= 100:
            raise InvalidRequest(f"logit_bias must be from -100 to 100, got {bias}", param="logit_bias")
    for i, token in enumerate(request.stop_token_ids or ()):
        if not 0 <= token < vocab:
            message = f"Token {token} is not in the vocabulary of {vocab}"
            raise InvalidRequest(message, param=f"stop_token_ids[{i}]")


def _check_stops(request: ChatRequest) -> None:
    if len(request.stops) > MAX_STOPS:
        raise InvalidRequest(f"At most {MAX_STOPS} stop strings are allowed", param="stop")
    for stop in request.stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(f"A stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop")


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text or "" for part in message.content)
    return message.content or ""

"""What chat completions and completions have in common: how tokens are chosen, where an answer ends, how it comes.

Unknown fields are ignored, because clients send many; a known one that would change the answer and is not supported is
refused by name. Beyond OpenAI's fields: top_k, min_p, repetition_penalty, ignore_eos, stop_token_ids, draft.
"""

import secrets
from typing import Annotated

import msgspec
from msgspec import Meta

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.gateway.ask import NO_LIMIT

MAX_CHOICES = 128
MAX_STOPS = 4
MAX_STOP_CHARS = 4096
MAX_STOP_TOKENS = 1024
MAX_BIASES = 4096
# Below it logits divided by the temperature overflow; such an answer is greedy anyway.
LEAST_TEMPERATURE = 1e-5

RANGES: dict[str, tuple[float | None, float | None]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "n": (1, MAX_CHOICES),
    "seed": (-(2**63), 2**63 - 1),
}
"""Inclusive bounds; None is no bound."""

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


class StreamOptions(msgspec.Struct, frozen=True):
    """Options that only a streamed answer has."""

    include_usage: bool | None = None


class OpenAiFields(msgspec.Struct, frozen=True, kw_only=True):
    """None is the same as absent everywhere. Fields that change nothing here, such as `user`, are not listed."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
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
    service_tier: str | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def low_priority(self) -> bool:
        return self.service_tier == "flex"

    def sampling(self, limit: int | None) -> Sampling:
        """How to sample at most `limit` tokens. A missing seed is drawn here, so that a request that moves to another
        worker keeps its random numbers."""
        chosen = {name: value for name in _SAMPLED if (value := getattr(self, name)) is not None}
        if chosen.get("temperature", 1.0) < LEAST_TEMPERATURE:
            chosen["temperature"] = 0.0
        return Sampling(
            **chosen,
            max_tokens=NO_LIMIT if limit is None else limit,
            logit_bias=self.logit_bias or {},
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**63,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
        )


def check_fields(request: OpenAiFields, vocab: int) -> None:
    """Raises `InvalidRequest` for the first field whose value cannot be honoured."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    check_ranges(request, RANGES)
    _check_tokens(request, vocab)
    check_stops(request.stops, "stop", MAX_STOPS)


def check_ranges(request: msgspec.Struct, ranges: dict[str, tuple[float | None, float | None]]) -> None:
    """Raises `InvalidRequest` for the first of the named fields outside its inclusive bounds."""
    for name, (low, high) in ranges.items():
        value = getattr(request, name)
        if value is None:
            continue
        below = low is not None and (value < low or (value == low and name in _NOT_ZERO))
        if below or (high is not None and value > high):
            raise InvalidRequest(f"{name} must be {_interval(name, low, high)}, got {value}", param=name)


def check_stops(stops: tuple[str, ...], param: str, most: int) -> None:
    """Raises `InvalidRequest` for too many stop strings, or one of a length that cannot be."""
    if len(stops) > most:
        raise InvalidRequest(f"At most {most} stop strings are allowed", param=param)
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(f"A stop string must have 1 to {MAX_STOP_CHARS} characters", param=param)


def _interval(name: str, low: float | None, high: float | None) -> str:
    lower = "greater than" if name in _NOT_ZERO else "at least"
    return f"{lower} {low}" if high is None else f"{lower} {low} and at most {high}"


def _check_tokens(request: OpenAiFields, vocab: int) -> None:
    for token, bias in (request.logit_bias or {}).items():
        if not 0 <= token < vocab:
            raise InvalidRequest(f"Token {token} is not in the vocabulary of {vocab}", param="logit_bias")
        if not -100 <= bias <= 100:
            raise InvalidRequest(f"logit_bias must be from -100 to 100, got {bias}", param="logit_bias")
    for i, token in enumerate(request.stop_token_ids or ()):
        if not 0 <= token < vocab:
            message = f"Token {token} is not in the vocabulary of {vocab}"
            raise InvalidRequest(message, param=f"stop_token_ids[{i}]")

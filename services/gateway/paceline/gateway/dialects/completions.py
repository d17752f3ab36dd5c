"""POST /v1/completions: text that goes on behind text, for tools that score and complete.

`echo` with `logprobs` gives the log probabilities of the prompt, from which likelihoods of given text are read.
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway import sse
from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask, Prompt
from paceline.gateway.deltas import Answer, Delta, End, Text, TokenLogprob
from paceline.gateway.dialect import Renderer
from paceline.gateway.dialects.chat_tools import ResponseFormat, shape
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.dialects.openai_fields import MAX_CHOICES, OpenAiFields, check_fields, check_ranges
from paceline.gateway.errors import Problem

MAX_PROMPT_TOKENS = 1 << 20
_DEFAULT_TOKENS = 16
_MAX_ALTERNATIVES = 5

_RANGES: dict[str, tuple[float | None, float | None]] = {
    "max_tokens": (0, None),
    "logprobs": (0, _MAX_ALTERNATIVES),
    "best_of": (1, MAX_CHOICES),
}

T = TypeVar("T")

_Ids = Annotated[list[int], Meta(max_length=MAX_PROMPT_TOKENS)]
_prompt = msgspec.json.Decoder(str | Annotated[list[int | str | _Ids], Meta(max_length=MAX_PROMPT_TOKENS)])


class CompletionRequest(OpenAiFields, frozen=True, kw_only=True):
    """A request as it came, validated by `parse`. A prompt is text or token ids, or a list of either."""

    prompt: Raw
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None


class SpokenCompletion:
    """A `Spoken`."""

    def __init__(self, request: CompletionRequest, prompts: tuple[Prompt, ...]) -> None:
        self._include_usage = request.include_usage
        self.ask = Ask(
            model=request.model,
            prompts=prompts,
            sampling=request.sampling(_DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens),
            choices=request.n or 1,
            stops=request.stops,
            shape=shape(request.response_format),
            logprobs=request.logprobs,
            echo=bool(request.echo),
            stream=bool(request.stream),
            draft=request.draft is not False,
            cache_key=request.prompt_cache_key,
            low_priority=request.low_priority,
        )

    def renderer(self, head: Head) -> Renderer:
        choices = len(self.ask.prompts) * self.ask.choices
        return _Chunks(
            head, choices, include_usage=self._include_usage, logprobs=self.ask.logprobs is not None
        )

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        return {
            **_fields(head),
            "choices": [
                {
                    "text": answer.text,
                    "index": i,
                    "logprobs": (
                        None if self.ask.logprobs is None else token_logprobs(answer.logprobs, 0)[0]
                    ),
                    "finish_reason": answer.end.reason,
                }
                for i, answer in enumerate(answers)
            ],
            "usage": usage.body(),
        }


class Completions:
    """A `Dialect`."""

    name = "completions"

    def parse(self, body: bytes, *, vocab: int) -> SpokenCompletion:
        request = decode(_decoder, body)
        if request.suffix:
            raise InvalidRequest("Text cannot be put in before a suffix here", param="suffix")
        check_fields(request, vocab)
        check_ranges(request, _RANGES)
        if request.max_tokens == 0 and not request.echo:
            raise InvalidRequest("max_tokens must be at least 1 without echo", param="max_tokens")
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise InvalidRequest("best_of is not supported: leave it out, or equal to n", param="best_of")
        prompts = _prompts(request.prompt, vocab)
        if len(prompts) * (request.n or 1) > MAX_CHOICES:
            raise InvalidRequest(f"At most {MAX_CHOICES} answers can be asked for at once", param="prompt")
        return SpokenCompletion(request, prompts)

    def problem(self, problem: Problem, request_id: str) -> Any:
        return problem.body()


COMPLETIONS = Completions()

_decoder = msgspec.json.Decoder(CompletionRequest)


def _prompts(field: Raw, vocab: int) -> tuple[Prompt, ...]:
    try:
        given = _prompt.decode(field)
    except msgspec.ValidationError as e:
        message = "A prompt is text, token ids, or a list of either"
        raise InvalidRequest(f"{message}: {e}", param="prompt") from e
    if isinstance(given, str):
        return (given,)
    if not given:
        raise InvalidRequest("A prompt is needed", param="prompt")
    if isinstance(given[0], int):
        return (_ids(given, vocab, "prompt"),)
    if isinstance(given[0], str):
        return tuple(_all(given, str))
    return tuple(_ids(ids, vocab, f"prompt[{i}]") for i, ids in enumerate(_all(given, list)))


def _ids(given: Sequence[Any], vocab: int, at: str) -> tuple[int, ...]:
    ids = _all(given, int)
    if not ids or not 0 <= min(ids) <= max(ids) < vocab:
        raise InvalidRequest(f"Token ids must be from 0 to {vocab - 1}", param=at)
    return tuple(ids)


def _all(given: Sequence[Any], kind: type[T]) -> list[T]:
    items = [item for item in given if isinstance(item, kind)]
    if len(items) != len(given):
        raise InvalidRequest("All of a prompt's parts must be of one kind", param="prompt")
    return items


def _fields(head: Head) -> dict[str, Any]:
    return {
        "id": f"cmpl-{head.request_id}",
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
    }


def token_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> tuple[dict[str, Any], int]:
    """The `logprobs` object of tokens whose text begins `offset` characters into the answer, and where it ends.

    The first token of an echoed prompt follows nothing, so that it has none: NaN stands for it.
    """
    texts = [t.token.decode(errors="replace") for t in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    known = [t.logprob == t.logprob for t in tokens]
    return {
        "tokens": texts,
        "token_logprobs": [t.logprob if ok else None for t, ok in zip(tokens, known, strict=True)],
        "top_logprobs": [
            {token.decode(errors="replace"): logprob for token, logprob in t.top} if ok else None
            for t, ok in zip(tokens, known, strict=True)
        ],
        "text_offset": offsets,
    }, offset


class _Chunks:
    """A `Renderer`: the stream has objects of the same kind as the whole answer."""

    keep_alive = sse.KEEP_ALIVE

    def __init__(self, head: Head, choices: int, *, include_usage: bool, logprobs: bool) -> None:
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._offsets = [0] * choices
        self._open = b"data: " + orjson.dumps(_fields(head))[:-1] + b',"choices":['
        self._close = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def begin(self, usage: Usage) -> bytes:
        return b""

    def deltas(self, choice: int, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> bytes:
        text = "".join([d.text for d in deltas if isinstance(d, Text)])
        logged = b"null"
        if self._logprobs:
            values, self._offsets[choice] = token_logprobs(logprobs, self._offsets[choice])
            logged = orjson.dumps(values)
        return self._choice(choice, text, logged, b"null")

    def finish(self, choice: int, end: End) -> bytes:
        return self._choice(choice, "", b"null", b'"' + end.reason.encode() + b'"')

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return sse.DONE
        return self._open + b'],"usage":' + orjson.dumps(usage.body()) + b"}\n\n" + sse.DONE

    def error(self, problem: Problem) -> bytes:
        return b"data: " + problem.encode() + b"\n\n" + sse.DONE

    def _choice(self, choice: int, text: str, logprobs: bytes, reason: bytes) -> bytes:
        body = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]'
        return self._open + body % (choice, orjson.dumps(text), logprobs, reason) + self._close

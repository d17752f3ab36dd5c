"""An HTTP client that times streamed answers, and prompts of an exact length.

The client shares the machine with what it measures: while answers come it notes when and keeps the bytes, and reads
them once all have ended.
"""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from paceline.cli.sse import SseParser
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer

_WORDS = [
    "river",
    "stone",
    "paper",
    "light",
    "green",
    "table",
    "seven",
    "window",
    "summer",
    "market",
    "garden",
    "letter",
]


@dataclass
class Sample:
    """One answer, and what the gateway says of it. Times are seconds of one clock: when it was asked for, and when each
    text of it came, which is a token or a few."""

    began: float
    times: list[float] = field(default_factory=list)
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.times)]


def decode_rate(samples: Sequence[Sample]) -> float:
    """Tokens per second of all streams together, while every one of them decodes."""
    start = max(sample.times[0] for sample in samples)
    end = min(sample.times[-1] for sample in samples)
    tokens = sum(
        sum(start < at <= end for at in sample.times) * sample.completion_tokens / len(sample.times)
        for sample in samples
    )
    return tokens / (end - start)


class Prompts:
    """Prompts that share no page with one another, of exactly `tokens` tokens under the model's chat template."""

    def __init__(self, files: ModelFiles, seed: int = 0) -> None:
        self._template = ChatTemplate.load(files)
        self._tokenizer = Tokenizer.load(files)
        self._random = random.Random(seed)
        self._counter = itertools.count()

    def make(self, tokens: int) -> str:
        words = [f"{next(self._counter)} {self._random.getrandbits(64)}"]
        while self._length(words) < tokens:
            missing = tokens - self._length(words)
            words += self._random.choices(_WORDS, k=max(1, missing // 2))
        while self._length(words) > tokens:
            words.pop()
        while self._length(words) < tokens:
            words.append("a")
        return " ".join(words)

    def _length(self, words: list[str]) -> int:
        message = {"role": "user", "content": " ".join(words)}
        return len(self._tokenizer.encode(self._template.render([message])))


@dataclass(frozen=True)
class Gateway:
    """Where it listens, and what the model is called there."""

    host: str
    port: int
    model: str


async def ask(gateway: Gateway, prompt: str, max_tokens: int, **options: Any) -> Sample:
    """Stream one answer of exactly `max_tokens` tokens. Raises `RuntimeError` when it is none, or breaks off."""
    (sample,) = await ask_together(gateway, [prompt], max_tokens, **options)
    return sample


async def ask_together(
    gateway: Gateway, prompts: Sequence[str], max_tokens: int, **options: Any
) -> list[Sample]:
    """As `ask`, all at once."""
    return [
        read(e) for e in await asyncio.gather(*(_exchange(gateway, p, max_tokens, options) for p in prompts))
    ]


async def ask_in_turn(
    gateway: Gateway, prompts: Sequence[str], max_tokens: int, concurrency: int, **options: Any
) -> list[Sample]:
    """As `ask`, `concurrency` at a time, each followed by the next as soon as it ends."""
    waiting, exchanges = iter(prompts), list[Exchange]()

    async def client() -> None:
        for prompt in waiting:
            exchanges.append(await _exchange(gateway, prompt, max_tokens, options))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return [read(exchange) for exchange in exchanges]


class Exchange(asyncio.Protocol):
    """Sends a request and keeps what comes until the connection ends, with the time of each piece."""

    def __init__(self, request: bytes) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.began = time.perf_counter()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.pieces.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        if self.ended.cancelled():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


async def _exchange(gateway: Gateway, prompt: str, max_tokens: int, options: dict[str, Any]) -> Exchange:
    body = {
        "model": gateway.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {gateway.host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    transport, exchange = await asyncio.get_running_loop().create_connection(
        lambda: Exchange(head.encode() + data), gateway.host, gateway.port
    )
    try:
        await exchange.ended
    finally:
        transport.close()
    return exchange


def read(exchange: Exchange) -> Sample:
    """What an answer was. Raises `RuntimeError` when it is none, or broke off."""
    sample, parser = Sample(exchange.began), SseParser()
    for at, chunk in _chunks(exchange.pieces):
        for event in parser.feed(chunk):
            if event == "[DONE]":
                return sample
            _take(sample, msgspec.json.decode(event), at)
    raise RuntimeError("the answer broke off")


def _chunks(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The chunks of a body, and when the last byte of each came."""
    rest, headers = b"", True
    for at, piece in pieces:
        rest += piece
        if headers:
            head, separator, body = rest.partition(b"\r\n\r\n")
            if not separator:
                continue
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise RuntimeError(b"".join(piece for _, piece in pieces).decode(errors="replace"))
            rest, headers = body, False
        while (start := rest.find(b"\r\n") + 2) >= 2:
            end = start + int(rest[: start - 2], 16)
            if len(rest) < end + 2:
                break
            yield at, rest[start:end]
            rest = rest[end + 2 :]


def _take(sample: Sample, event: dict[str, Any], at: float) -> None:
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    if usage := event.get("usage"):
        sample.prompt_tokens, sample.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        sample.cached = usage["prompt_tokens_details"]["cached_tokens"]
        sample.stages = usage["paceline"]["stages"]
    if any(choice["delta"].get("content") for choice in event["choices"]):
        sample.times.append(at)

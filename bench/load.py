"""An HTTP client that times one streamed answer, and prompts of an exact length."""

import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
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
    """One answer: seconds to its first token, between later ones, and what the gateway says of its stages."""

    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stages: dict[str, float] = field(default_factory=dict)


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


async def ask(
    session: aiohttp.ClientSession, model: str, prompt: str, max_tokens: int, **options: Any
) -> Sample:
    """Stream one answer of exactly `max_tokens` tokens."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    sample, parser = Sample(), SseParser()
    began = last = time.perf_counter()
    async with session.post("/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for data in response.content.iter_any():
            now = time.perf_counter()
            for event in parser.feed(data):
                if event == "[DONE]":
                    return sample
                last = _take(sample, msgspec.json.decode(event), now, last, began)
    raise RuntimeError("the answer broke off")


def _take(sample: Sample, event: dict[str, Any], now: float, last: float, began: float) -> float:
    """Note one event; the time of the last text."""
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    if usage := event.get("usage"):
        sample.prompt_tokens, sample.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        sample.cached = usage["prompt_tokens_details"]["cached_tokens"]
        sample.stages = usage["paceline"]["stages"]
    if not any(choice["delta"].get("content") for choice in event["choices"]):
        return last
    if sample.ttft == 0.0:
        sample.ttft = now - began
    else:
        sample.gaps.append(now - last)
    return now

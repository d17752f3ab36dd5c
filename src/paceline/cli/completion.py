"""One streamed chat completion over HTTP, as a client sees it."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
import msgspec

from paceline.cli.sse import SseParser

ChatMessage: TypeAlias = dict[str, str]


class ChatError(Exception):
    """The gateway cannot be reached, refused, or broke off; the message is fit to be shown."""


@dataclass
class Figures:
    """What an answer cost: seconds since the request was sent, and the tokens of its usage."""

    ttft_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        """Generation speed after the first token; None when there was nothing to measure."""
        if self.ttft_s is None or self.completion_tokens < 2:
            return None
        return (self.completion_tokens - 1) / max(self.total_s - self.ttft_s, 1e-6)


@dataclass(frozen=True)
class Server:
    """Where to ask: the URL without a path, and the key if the gateway wants one."""

    url: str
    key: str | None = None

    def session(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        # An answer may take long; only the connection itself is on a clock.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        return aiohttp.ClientSession(self.url, headers=headers, timeout=timeout)


async def first_model(server: Server) -> str:
    """The id of a model that the gateway serves. Raises `ChatError`."""
    try:
        async with server.session() as session, session.get("/v1/models") as response:
            models = (await _checked(response))["data"]
    except aiohttp.ClientError as e:
        raise _unreachable(server, e) from e
    if not models:
        raise ChatError(f"{server.url} serves no model yet")
    return str(models[0]["id"])


async def stream(
    server: Server, model: str, messages: list[ChatMessage], figures: Figures, **options: Any
) -> AsyncGenerator[str, None]:
    """The text of the answer, piece by piece; `figures` is filled on the way. Raises `ChatError`."""
    body = {
        "model": model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    began = time.perf_counter()
    parser = SseParser()
    try:
        async with server.session() as session, session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                await _checked(response)
            async for chunk in response.content.iter_any():
                for event in parser.feed(chunk):
                    figures.total_s = time.perf_counter() - began
                    if event == "[DONE]":
                        return
                    if text := _text(msgspec.json.decode(event), figures):
                        yield text
    except aiohttp.ClientError as e:
        raise _unreachable(server, e) from e
    raise ChatError("the answer broke off")


def _text(event: dict[str, Any], figures: Figures) -> str:
    """The text that one event adds; notes its usage. Raises `ChatError` for an error event."""
    if "error" in event:
        raise ChatError(event["error"]["message"])
    if usage := event.get("usage"):
        figures.prompt_tokens = usage["prompt_tokens"]
        figures.completion_tokens = usage["completion_tokens"]
        figures.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if text and figures.ttft_s is None:
        figures.ttft_s = figures.total_s
    return text


async def _checked(response: aiohttp.ClientResponse) -> Any:
    data = await response.read()
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as e:
        raise ChatError(f"HTTP {response.status}: {data[:200].decode(errors='replace')}") from e
    if response.status != 200:
        raise ChatError(f"HTTP {response.status}: {body['error']['message']}")
    return body


def _unreachable(server: Server, error: aiohttp.ClientError) -> ChatError:
    if isinstance(error, aiohttp.ClientConnectorError):
        return ChatError(f"nothing answers at {server.url}; start it with: paceline up")
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return ChatError("the answer broke off")
    return ChatError(f"{server.url}: {error}")

"""What stands between a client and the gateway: it keeps what both said, and fails requests as a busy server would."""

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

_DROPPED = (
    "host",
    "content-length",
    "transfer-encoding",
    "content-encoding",
    "connection",
    "accept-encoding",
)
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens)":(\d+)')
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)":(\d+)')
_FAILED = re.compile(rb'^(?:data: \{"error"|event: (?:error|response\.failed)\n)', re.M)
_CUT = re.compile(rb'"(?:finish_reason":"length"|stop_reason":"max_tokens"|reason":"max_output_tokens")')


@dataclass
class Exchange:
    """One request with a body, and the answer as it came."""

    path: str
    request: dict[str, Any]
    status: int = 0
    body: bytes = b""

    @property
    def cached(self) -> int:
        """Prompt tokens that were reused, by the usage in the answer; -1 where it has none."""
        return _number(_CACHED, self.body)

    @property
    def prompt(self) -> int:
        """Prompt tokens in all."""
        tokens = _number(_PROMPT, self.body)
        # Anthropic counts those that were reused beside the others.
        return tokens + self.cached if self.path.startswith("/v1/messages") else tokens

    @property
    def failed(self) -> bool:
        """Whether it ended in an error, before the answer or in it."""
        return self.status != 200 or _FAILED.search(self.body) is not None

    @property
    def cut_short(self) -> bool:
        """Whether the limit on its length ended the answer."""
        return _CUT.search(self.body) is not None


@dataclass
class Proxy:
    """`faults` are the statuses of the next answers, which the gateway hears nothing of. `body` replaces
    what is in the body of each request."""

    gateway: str
    session: aiohttp.ClientSession
    body: Mapping[str, Any]
    url: str = ""
    faults: deque[int] = field(default_factory=deque)
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def answers(self) -> list[Exchange]:
        """Those exchanges that were asked for an answer and got one."""
        return [e for e in self.exchanges if e.status == 200 and not e.path.endswith("count_tokens")]

    async def handle(self, http: web.Request) -> web.StreamResponse:
        body = await http.read()
        request = json.loads(body) if body and http.content_type == "application/json" else {}
        if self.body and http.method == "POST":
            body = json.dumps({**request, **self.body}).encode()
        exchange = Exchange(http.path, request)
        if http.method == "POST":
            self.exchanges.append(exchange)
            if self.faults:
                exchange.status = self.faults.popleft()
                return _refusal(exchange.status)
        return await self._forward(http, body, exchange)

    async def _forward(self, http: web.Request, body: bytes, exchange: Exchange) -> web.StreamResponse:
        async with self.session.request(
            http.method, self.gateway + http.path_qs, data=body, headers=_passed(http.headers)
        ) as answer:
            exchange.status = answer.status
            response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
            await response.prepare(http)
            async for data in answer.content.iter_any():
                exchange.body += data
                await response.write(data)
            await response.write_eof()
            return response


@asynccontextmanager
async def proxied(gateway: str, body: Mapping[str, Any] | None = None) -> AsyncIterator[Proxy]:
    """A proxy before the gateway at the URL `gateway`, on a port of its own."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        proxy = Proxy(gateway, session, body or {})
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()


def _refusal(status: int) -> web.Response:
    kind, code = {
        429: ("rate_limit_error", "rate_limit_exceeded"),
        503: ("server_error", "service_unavailable"),
    }[status]
    error = {"message": "Come back later", "type": kind, "param": None, "code": code}
    return web.json_response({"type": "error", "error": error}, status=status, headers={"Retry-After": "1"})


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _DROPPED}


def _number(pattern: re.Pattern[bytes], body: bytes) -> int:
    found = pattern.findall(body)
    return int(found[-1]) if found else -1

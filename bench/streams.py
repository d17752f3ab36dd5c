"""Many streamed answers at once, of which events are counted and nothing is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

_START_S = 60.0
_AT_ONCE = 16


class Streams:
    """Open requests. `events` counts the server-sent events that came so far."""

    def __init__(self) -> None:
        self.events = 0
        self.open_ones = 0
        self.arrived = asyncio.Event()
        self.failed: str | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int, body: dict[str, Any], count: int) -> "AsyncIterator[Streams]":
        """`count` requests with `body`, a few at a time, once all of them have an event.

        Raises `RuntimeError` if one is refused."""
        streams = cls()
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        transports = []
        try:
            async with asyncio.timeout(_START_S):
                for opened in range(0, count, _AT_ONCE):
                    wanted = min(count, opened + _AT_ONCE)
                    streams.arrived = asyncio.Event()
                    for _ in range(opened, wanted):
                        transport, _ = await loop.create_connection(
                            partial(_Stream, streams, wanted, head.encode() + data), "127.0.0.1", port
                        )
                        transports.append(transport)
                    await streams.arrived.wait()
                    if streams.failed:
                        raise RuntimeError(streams.failed)
            yield streams
            if streams.failed:
                raise RuntimeError(streams.failed)
        finally:
            for transport in transports:
                transport.abort()


class _Stream(asyncio.Protocol):
    def __init__(self, streams: Streams, wanted: int, request: bytes) -> None:
        self._streams = streams
        self._wanted = wanted
        self._request = request
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self._streams.events += data.count(b"data: {")
        if self._begun:
            return
        self._begun = True
        if b" 200 " not in data[:20]:
            self._streams.failed = data.decode(errors="replace")
            self._streams.arrived.set()
        self._streams.open_ones += 1
        if self._streams.open_ones == self._wanted:
            self._streams.arrived.set()

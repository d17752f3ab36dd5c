"""The HTTP response that carries server-sent events."""

import asyncio

from aiohttp import HttpVersion11, web

_LAST_WRITE_S = 1.0
# Where aiohttp's own writes begin to wait.
_BEHIND_BYTES = 64 << 10
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """Begins with the first event, so that until then a failure can still have a status of its own.

    Writing raises `ConnectionError` when the client is gone.
    """

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self._response: web.StreamResponse | None = None
        self._beginning = asyncio.Lock()
        # As they are once the stream has begun: aiohttp works them out anew each time.
        self._transport: asyncio.Transport | None = None
        self._chunked = False

    @property
    def begun(self) -> bool:
        return self._response is not None

    async def write(self, events: bytes) -> None:
        """Send. Waits while the client reads slower than we write."""
        await (await self._begin()).write(events)

    @property
    def keeps_up(self) -> bool:
        """Whether `write_now` may be used: the stream has begun, and the client reads it."""
        transport = self._transport
        return (
            transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() < _BEHIND_BYTES
        )

    def write_now(self, events: bytes) -> None:
        """Send, without waiting and without aiohttp's coroutines, which take longer than all else that a token does."""
        if self._transport is None:
            raise ConnectionResetError("the client is gone")
        self._transport.write(b"%x\r\n%b\r\n" % (len(events), events) if self._chunked else events)

    async def end(self, events: bytes) -> web.StreamResponse:
        """Send the last events."""
        response = await self._begin()
        await response.write(events)
        await response.write_eof()
        return response

    async def fail(self, events: bytes) -> web.StreamResponse:
        """End with an error. A client that does not take even that is cut off."""
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                return await self.end(events)
        except TimeoutError as e:
            if self._http.transport:
                self._http.transport.abort()
            raise ConnectionResetError("the client does not read") from e

    async def _begin(self) -> web.StreamResponse:
        async with self._beginning:
            if self._response is None:
                response = web.StreamResponse(headers=_HEADERS)
                if self._http.version >= HttpVersion11:
                    response.enable_chunked_encoding()
                await response.prepare(self._http)
                self._response = response
                self._transport = self._http.transport
                self._chunked = response.chunked
            return self._response

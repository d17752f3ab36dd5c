"""The HTTP response that carries server-sent events."""

import asyncio

from aiohttp import web

from paceline.gateway import sse
from paceline.gateway.errors import Problem

_LAST_WRITE_S = 1.0
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

    @property
    def begun(self) -> bool:
        return self._response is not None

    async def write(self, events: bytes) -> None:
        """Send. Waits while the client reads slower than we write."""
        await (await self._begin()).write(events)

    async def end(self, events: bytes) -> web.StreamResponse:
        """Send the last events."""
        response = await self._begin()
        await response.write(events + sse.DONE)
        await response.write_eof()
        return response

    async def fail(self, problem: Problem) -> web.StreamResponse:
        """End with an error event. A client that does not take even that is cut off."""
        try:
            async with asyncio.timeout(_LAST_WRITE_S):
                return await self.end(sse.error(problem))
        except TimeoutError as e:
            if self._http.transport:
                self._http.transport.abort()
            raise ConnectionResetError("the client does not read") from e

    async def _begin(self) -> web.StreamResponse:
        if self._response is None:
            response = web.StreamResponse(headers=_HEADERS)
            await response.prepare(self._http)
            self._response = response
        return self._response

"""A streamed answer: what several generations say, in a dialect's bytes, on one event stream."""

from collections.abc import Sequence

from paceline.gateway.deltas import Delta, TokenLogprob
from paceline.gateway.dialect import Renderer
from paceline.gateway.eventstream import EventStream
from paceline.gateway.generation import Generation


class Streaming:
    """Begins with what the first generation says first, so that until then a failure can have a status of its own; or
    with a sign of life, when that takes long."""

    def __init__(self, stream: EventStream, renderer: Renderer) -> None:
        self.renderer = renderer
        self._stream = stream
        self._begun = False

    async def run(self, choice: int, generation: Generation) -> str:
        """Stream one of the answers to its end. Returns why it ended."""
        end = await generation.run(_Choice(self, choice, generation))
        await self.write(self.begin(generation) + self.renderer.finish(choice, end))
        return end.reason

    @property
    def keeps_up(self) -> bool:
        """Whether `write_now` may be used."""
        return self._stream.keeps_up

    def write_now(self, events: bytes) -> None:
        # A chunk of no bytes would end the response.
        if events:
            self._stream.write_now(events)

    def begin(self, generation: Generation) -> bytes:
        """What goes before the first events of all; nothing from then on."""
        if self._begun:
            return b""
        self._begun = True
        return self.renderer.begin(generation.usage())

    async def write(self, events: bytes) -> None:
        """Send, and wait for a slow client."""
        if events:
            await self._stream.write(events)


class _Choice:
    """A `Sink`."""

    def __init__(self, streaming: Streaming, choice: int, generation: Generation) -> None:
        self._streaming = streaming
        self._choice = choice
        self._generation = generation

    @property
    def ready(self) -> bool:
        return self._streaming.keeps_up

    def put(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        self._streaming.write_now(self._streaming.renderer.deltas(self._choice, deltas, logprobs))

    async def send(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        events = self._streaming.begin(self._generation)
        if deltas or logprobs:
            events += self._streaming.renderer.deltas(self._choice, deltas, logprobs)
        await self._streaming.write(events)

    async def keep_alive(self) -> None:
        events = self._streaming.begin(self._generation)
        await self._streaming.write(events + self._streaming.renderer.keep_alive)

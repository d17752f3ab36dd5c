"""A reader of an answer, run as the answer comes."""

from collections.abc import Callable, Collection

from paceline.gateway.deltas import Delta
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Source, Steps


class Machine:
    """A `Parser` whose rules are a generator. Markers mean the same as text and as special tokens; special tokens
    that are no markers are nothing that a client reads."""

    def __init__(
        self, read: Callable[[Source, Output], Steps[None]], out: Output, markers: Collection[str]
    ) -> None:
        self.source = Source()
        self._out = out
        self._markers = markers
        self._reader = read(self.source, out)
        self._done = False

    def push(self, text: str) -> list[Delta]:
        self.source.feed(text)
        self._run()
        return self._out.take()

    def special(self, token: str) -> list[Delta]:
        return self.push(token) if token in self._markers else []

    def finish(self) -> list[Delta]:
        self.source.end()
        self._run()
        self._out.finish()
        return self._out.take()

    def _run(self) -> None:
        if not self._done:
            try:
                next(self._reader)
            except StopIteration:
                self._done = True

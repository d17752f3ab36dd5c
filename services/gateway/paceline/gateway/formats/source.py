"""What a model writes, read by generators that pause where the text so far ends."""

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A reader: it yields whenever it needs more text, and returns T."""

Sink: TypeAlias = Callable[[str], object]

BLANKS = " \t\r\n"
_BLANK = re.compile(f"[{BLANKS}]*")
_NEWLINES = re.compile(r"\n*")
_ALL = re.compile(r"(?s).*")


def drop(_: str) -> None:
    """The sink for what nobody needs."""


class Markers:
    """Texts to look for; none of them begins another."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self._any = re.compile("|".join(map(re.escape, texts)))
        self._first = re.compile("|".join(sorted({re.escape(text[0]) for text in texts})))
        self._longest = max(map(len, texts))

    def find(self, text: str, at: int) -> re.Match[str] | None:
        """The first marker from `at` on."""
        return self._any.search(text, at)

    def held(self, text: str, at: int) -> int:
        """Where the part of `text` that may become a marker begins; its length if there is none."""
        for match in self._first.finditer(text, max(at, len(text) - self._longest + 1)):
            tail = text[match.start() :]
            if any(marker.startswith(tail) for marker in self._texts):
                return match.start()
        return len(text)


class Source:
    """Text in the order of its arrival. Readers consume it; what they cannot judge yet stays for the next push.

    All readers together look at each character a bounded number of times, however the text is cut.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._record: list[str] | None = None
        self._starved = False

    def feed(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text comes: whoever waits for some goes on without."""
        self._ended = True

    @property
    def pending(self) -> int:
        """Characters that nobody has consumed yet."""
        return len(self._text) - self._at

    @property
    def exhausted(self) -> bool:
        """The answer is over and all of it consumed."""
        return self._ended and not self.pending

    def record(self, begin: str = "") -> None:
        """Keep what is consumed from now on, after `begin`, until `forget`, `recorded` or `rejected`."""
        self._record = [begin]
        self._starved = False

    def forget(self) -> None:
        self._record = None

    def recorded(self) -> str:
        """What was kept."""
        record, self._record = self._record or [], None
        return "".join(record)

    def rejected(self) -> str:
        """What was kept, but nothing where a reader came to the answer's end: a call that broke off before it had a
        name is no text."""
        return "" if self._starved else self.recorded()

    def peek(self) -> Steps[str]:
        """The next character, "" at the end."""
        while not self.pending and not self._ended:
            yield
        self._starved = self._starved or not self.pending
        return self._text[self._at : self._at + 1]

    def take(self, count: int) -> Steps[str]:
        """The next `count` characters, fewer at the end."""
        while self.pending < count and not self._ended:
            yield
        self._starved = self._starved or self.pending < count
        return self._consume(min(self._at + count, len(self._text)))

    def accept(self, text: str) -> Steps[bool]:
        """Consumes `text` if it comes next."""
        while self.pending < len(text) and text.startswith(self._text[self._at :]):
            if self._ended:
                self._starved = True
                return False
            yield
        if not self._text.startswith(text, self._at):
            return False
        self._consume(self._at + len(text))
        return True

    def blanks(self) -> Steps[str]:
        """Consumes whitespace and returns it."""
        blanks: list[str] = []
        yield from self.through(_BLANK, blanks.append)
        return "".join(blanks)

    def through(self, pattern: re.Pattern[str], sink: Sink) -> Steps[None]:
        """Passes on what matches `pattern`, a repeated set of characters, up to the first character outside."""
        while True:
            match = pattern.match(self._text, self._at)
            if match is not None and match.end() > self._at:
                sink(self._consume(match.end()))
            if self.pending or self._ended:
                return
            yield

    def until(self, markers: Markers, sink: Sink) -> Steps[str | None]:
        """Passes on what comes before the next marker, consumes and returns that; None if the text ends first."""
        while True:
            match = markers.find(self._text, self._at)
            stop = len(self._text) if self._ended else markers.held(self._text, self._at)
            if match is not None:
                stop = match.start()
            if stop > self._at:
                sink(self._consume(stop))
            if match is not None:
                return self._consume(match.end())
            if self._ended:
                self._starved = True
                return None
            yield

    def unread(self, text: str) -> None:
        """Takes back `text`, which was consumed last."""
        self._at -= len(text)
        if self._record is not None:
            self._record.append("".join(self._record)[: -len(text)])
            del self._record[:-1]

    def _consume(self, stop: int) -> str:
        piece = self._text[self._at : stop]
        self._at = stop
        if self._record is not None:
            self._record.append(piece)
        return piece


def newlines(source: Source, sink: Sink) -> Steps[None]:
    """Passes newlines on, up to something else."""
    yield from source.through(_NEWLINES, sink)


def rest(source: Source, sink: Sink) -> Steps[None]:
    """Passes everything on."""
    while not source.exhausted:
        yield from source.through(_ALL, sink)
        yield from source.peek()

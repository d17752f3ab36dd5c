"""Server-sent events from bytes as they arrive, cut anywhere. Pure."""

from dataclasses import dataclass, field


@dataclass
class SseParser:
    """Collects the `data` of each event; other fields and comments are skipped, as the specification says."""

    _partial: bytes = b""
    _data: list[str] = field(default_factory=list)

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes, in order. Raises `UnicodeDecodeError` on invalid UTF-8."""
        lines = (self._partial + chunk).split(b"\n")
        self._partial = lines.pop()
        return [
            event for line in lines if (event := self._line(line.removesuffix(b"\r").decode())) is not None
        ]

    def _line(self, line: str) -> str | None:
        if line == "":
            event = "\n".join(self._data) if self._data else None
            self._data.clear()
            return event
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        return None

"""Input files: JSONL with a request on each line, checked as it arrives."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.decoding import decode

_CHUNK_BYTES = 256 << 10
_SPACE = b" \t\r\n"


class Line(msgspec.Struct, frozen=True):
    """One request as far as running it needs."""

    custom_id: str
    body: Raw


class _Checked(Line, frozen=True):
    """A request as clients have to write it. Whether `body` is a good one is seen when it runs."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=256)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]


_lines = msgspec.json.Decoder(Line)
_checked = msgspec.json.Decoder(_Checked)


class Numbered(msgspec.Struct, frozen=True):
    """A line and its number, from 1; blank lines count and are no requests."""

    number: int
    line: Line


def read_chunk(first: int, chunk: bytes) -> Iterator[Numbered]:
    """The requests of whole lines that were checked; the first is line `first` of its file."""
    for number, text in enumerate(chunk.split(b"\n"), first):
        if text.strip(_SPACE):
            yield Numbered(number, _lines.decode(text))


class LineReader:
    """Cuts a file, however it arrives, into chunks of whole lines, and checks each line."""

    def __init__(self, *, max_lines: int, max_line_bytes: int) -> None:
        self.requests = 0
        self.urls: set[str] = set()
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._number = 0
        self._rest = b""
        self._chunk: list[bytes] = []
        self._chunk_bytes = 0
        self._ids: set[str] = set()

    def push(self, data: bytes) -> list[bytes]:
        """More of the file; chunks that became full, often none. Raises `InvalidRequest` that names the line."""
        chunks = []
        *lines, self._rest = (self._rest + data).split(b"\n") if b"\n" in data else (self._rest + data,)
        for line in lines:
            chunks += self._take(line, b"\n")
        self._check_length(self._number + 1, self._rest)
        return chunks

    def finish(self) -> list[bytes]:
        """The last chunk. Raises `InvalidRequest`, also for a file without requests."""
        chunks = self._take(self._rest, b"") if self._rest else []
        if self.requests == 0:
            raise InvalidRequest("The file holds no requests", param="file")
        if self._chunk:
            chunks.append(self._cut())
        return chunks

    def _take(self, text: bytes, end: bytes) -> list[bytes]:
        self._number += 1
        self._check_length(self._number, text)
        if text.strip(_SPACE):
            self._count(_check(self._number, text))
        chunks = []
        if self._chunk and self._chunk_bytes + len(text) + len(end) > _CHUNK_BYTES:
            chunks.append(self._cut())
        self._chunk.append(text + end)
        self._chunk_bytes += len(text) + len(end)
        return chunks

    def _count(self, line: _Checked) -> None:
        if line.custom_id in self._ids:
            raise _wrong(self._number, f"custom_id {line.custom_id!r} was used before", "custom_id")
        if self.requests >= self._max_lines:
            raise InvalidRequest(f"The file has more than {self._max_lines} requests", param="file")
        self.requests += 1
        self._ids.add(line.custom_id)
        self.urls.add(line.url)

    def _check_length(self, number: int, text: bytes) -> None:
        if len(text) > self._max_line_bytes:
            raise _wrong(number, f"longer than {self._max_line_bytes} bytes", None)

    def _cut(self) -> bytes:
        chunk = b"".join(self._chunk)
        self._chunk, self._chunk_bytes = [], 0
        return chunk


def _check(number: int, text: bytes) -> _Checked:
    try:
        line = decode(_checked, text)
    except InvalidRequest as e:
        raise _wrong(number, e.message, e.param) from e
    if not bytes(line.body).startswith(b"{"):
        raise _wrong(number, "body must be an object", "body")
    return line


def _wrong(number: int, message: str, field: str | None) -> InvalidRequest:
    at = f"file[{number}]"
    return InvalidRequest(f"Line {number}: {message}", param=f"{at}.{field}" if field else at)

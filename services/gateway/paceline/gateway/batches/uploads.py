"""POST /v1/files: a form with a file, checked and stored while it arrives."""

import time

import aiohttp
from aiohttp import web
from aiohttp.http import HttpProcessingError

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.files import InputFile
from paceline.gateway.batches.lines import LineReader
from paceline.gateway.batches.names import new_id
from paceline.gateway.batches.store import Store
from paceline.gateway.errors import Rejected, too_large

_PIECE_BYTES = 64 << 10
_FIELD_BYTES = 1 << 10
_NAME_CHARS = 256


class Upload:
    """One form. What it stored is to be dropped by `store.drop_data(file_id)` when anything fails."""

    def __init__(self, store: Store, *, max_bytes: int, max_lines: int, max_line_bytes: int) -> None:
        self.file_id = new_id("file-")
        self._store = store
        self._max_bytes = max_bytes
        self._lines = LineReader(max_lines=max_lines, max_line_bytes=max_line_bytes)
        self._purpose: str | None = None
        self._filename: str | None = None
        self._bytes = 0
        self._chunks = 0

    async def read(self, http: web.Request) -> InputFile:
        """Raises `InvalidRequest` that names the field, or the line, that is wrong, and `Rejected` with 413."""
        if http.content_type != "multipart/form-data":
            raise InvalidRequest("The body must be multipart/form-data")
        try:
            form = await http.multipart()
            while (part := await form.next()) is not None:
                if not isinstance(part, aiohttp.BodyPartReader):
                    raise InvalidRequest("Forms within forms are not supported")
                await self._take(part)
        except (ValueError, HttpProcessingError) as e:
            raise InvalidRequest(f"The form cannot be read: {e}") from e
        if self._purpose is None:
            raise InvalidRequest("The purpose is missing", param="purpose")
        if self._filename is None:
            raise InvalidRequest("The file is missing", param="file")
        return InputFile(
            id=self.file_id,
            filename=self._filename,
            created_at=int(time.time()),
            bytes=self._bytes,
            lines=self._lines.requests,
            urls=tuple(sorted(self._lines.urls)),
        )

    async def _take(self, part: aiohttp.BodyPartReader) -> None:
        match part.name:
            case "purpose" if self._purpose is None:
                self._purpose = await _text(part)
                if self._purpose != "batch":
                    raise InvalidRequest("The only purpose that is supported is batch", param="purpose")
            case "file" if self._filename is None:
                self._filename = _clean(part.filename or "file.jsonl")[:_NAME_CHARS]
                await self._take_file(part)
            case name:
                name = _clean(name or "")
                raise InvalidRequest(f"The field {name!r} is not supported, or given twice", param=name)

    async def _take_file(self, part: aiohttp.BodyPartReader) -> None:
        while not part.at_eof():
            piece = await part.read_chunk(_PIECE_BYTES)
            self._bytes += len(piece)
            if self._bytes > self._max_bytes:
                raise Rejected(too_large(self._max_bytes))
            await self._put(self._lines.push(piece))
        await self._put(self._lines.finish())

    async def _put(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            await self._store.put_data(self.file_id, self._chunks, chunk)
            self._chunks += 1


async def _text(part: aiohttp.BodyPartReader) -> str:
    """A short field. What is too long for one is cut."""
    text = b""
    while not part.at_eof() and len(text) < _FIELD_BYTES:
        text += await part.read_chunk(_FIELD_BYTES)
    return text.decode(errors="replace")


def _clean(name: str) -> str:
    """Bytes of a header that are no UTF-8 come as lone surrogates, which no JSON can hold."""
    return name.encode(errors="replace").decode()

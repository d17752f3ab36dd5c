"""/v1/files"""

import asyncio
import contextlib

from aiohttp import web

from paceline.contracts.errors import Unavailable
from paceline.gateway.batches.desk import Desk
from paceline.gateway.batches.files import InputFile, file_view
from paceline.gateway.batches.names import tenant_token
from paceline.gateway.batches.paging import page_of, page_view
from paceline.gateway.batches.store import Store
from paceline.gateway.batches.uploads import Upload
from paceline.gateway.errors import Rejected, body_timed_out, http_problem, too_large
from paceline.gateway.front import Front
from paceline.gateway.http_json import json_response

_PAGE = 10_000
# A form around the file.
_FORM_BYTES = 64 << 10
# Slower than this nobody uploads.
_BYTES_PER_S = 256 << 10


class FileRoutes:
    """One method per endpoint."""

    def __init__(self, front: Front, desk: Desk, store: Store) -> None:
        self._front = front
        self._desk = desk
        self._store = store

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/files", self.upload)
        app.router.add_get("/v1/files", self.list_files)
        app.router.add_get("/v1/files/{file}", self.get_file)
        app.router.add_delete("/v1/files/{file}", self.delete)
        app.router.add_get("/v1/files/{file}/content", self.content)

    async def upload(self, http: web.Request) -> web.Response:
        settings = self._front.settings
        tenant = await self._tenant(http)
        if (http.content_length or 0) > settings.batch_max_file_bytes + _FORM_BYTES:
            raise Rejected(too_large(settings.batch_max_file_bytes))
        await self._desk.check_files(tenant)
        upload = Upload(
            self._store,
            max_bytes=settings.batch_max_file_bytes,
            max_lines=settings.batch_max_lines,
            max_line_bytes=settings.max_body_bytes,
        )
        seconds = settings.body_timeout_s + settings.batch_max_file_bytes / _BYTES_PER_S
        try:
            file = await self._read(http, upload, seconds)
            await self._store.put_file(tenant, file)
        except BaseException:
            await asyncio.shield(self._forget(upload))
            raise
        return json_response(file_view(file))

    async def list_files(self, http: web.Request) -> web.Response:
        tenant = await self._tenant(http)
        files = await self._store.files(tenant)
        if purpose := http.query.get("purpose"):
            files = [file for file in files if file_view(file)["purpose"] == purpose]
        page, more = page_of(files, http.query, default=_PAGE, most=_PAGE)
        return json_response(page_view([file_view(file) for file in page], more=more))

    async def get_file(self, http: web.Request) -> web.Response:
        tenant = await self._tenant(http)
        return json_response(file_view(await self._desk.file(tenant, http.match_info["file"])))

    async def delete(self, http: web.Request) -> web.Response:
        tenant = await self._tenant(http)
        file = await self._desk.file(tenant, http.match_info["file"])
        await self._store.delete_file(tenant, file)
        return json_response({"id": file.id, "object": "file", "deleted": True})

    async def content(self, http: web.Request) -> web.StreamResponse:
        tenant = await self._tenant(http)
        file = await self._desk.file(tenant, http.match_info["file"])
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/jsonl",
                "Content-Length": str(file.bytes),
                "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
            }
        )
        await response.prepare(http)
        try:
            async for piece in self._store.content(file):
                await response.write(piece)
        except Unavailable as e:
            # A body that breaks off must not look like a whole one.
            if http.transport is not None:
                http.transport.abort()
            raise ConnectionResetError("the store went away") from e
        await response.write_eof()
        return response

    async def _tenant(self, http: web.Request) -> str:
        return tenant_token((await self._desk.tenant(http)).name)

    async def _read(self, http: web.Request, upload: Upload, seconds: float) -> InputFile:
        try:
            async with self._front.uploads.place(seconds):
                return await upload.read(http)
        except TimeoutError as e:
            raise Rejected(body_timed_out()) from e
        except web.RequestPayloadError as e:
            raise Rejected(http_problem(400, "The body cannot be decoded")) from e

    async def _forget(self, upload: Upload) -> None:
        with contextlib.suppress(Unavailable):
            await self._store.drop_data(upload.file_id)

"""/v1/batches"""

from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.batch import Metadata
from paceline.gateway.batches.desk import Desk
from paceline.gateway.batches.endpoints import is_run
from paceline.gateway.batches.files import InputFile
from paceline.gateway.batches.names import new_id, tenant_token
from paceline.gateway.batches.paging import page_of, page_view
from paceline.gateway.batches.store import Kept, Store
from paceline.gateway.dialects.decoding import decode
from paceline.gateway.front import Front
from paceline.gateway.http_json import json_response
from paceline.gateway.intake import read_body

_PAGE, _LARGEST_PAGE = 20, 100
_ABSENT = (b"", b"null")


class NewBatch(msgspec.Struct, frozen=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: Raw = Raw()


_decoder = msgspec.json.Decoder(NewBatch)


def parse_new_batch(body: bytes) -> NewBatch:
    """Raises `InvalidRequest`."""
    wanted = decode(_decoder, body)
    if bytes(wanted.output_expires_after) not in _ABSENT:
        raise InvalidRequest("How long files are kept cannot be chosen", param="output_expires_after")
    return wanted


class BatchRoutes:
    """One method per endpoint."""

    def __init__(self, front: Front, desk: Desk, store: Store) -> None:
        self._front = front
        self._desk = desk
        self._store = store

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/v1/batches", self.create)
        app.router.add_get("/v1/batches", self.list_batches)
        app.router.add_get("/v1/batches/{batch}", self.get_batch)
        app.router.add_post("/v1/batches/{batch}/cancel", self.cancel)

    async def create(self, http: web.Request) -> web.Response:
        tenant = await self._desk.tenant(http)
        settings = self._front.settings
        body = await read_body(
            http, self._front.uploads, limit=settings.max_body_bytes, timeout=settings.body_timeout_s
        )
        wanted = parse_new_batch(body)
        token = tenant_token(tenant.name)
        file = await self._desk.file(token, wanted.input_file_id)
        if not isinstance(file, InputFile):
            raise InvalidRequest("The file is no input of batches", param="input_file_id")
        if other := set(file.urls) - {wanted.endpoint}:
            message = f"The file has requests for {min(other)}, not only for {wanted.endpoint}"
            raise InvalidRequest(message, param="endpoint")
        await self._desk.check_batches(token)
        batch = await self._desk.submit(
            tenant, new_id("batch_"), wanted.endpoint, file.id, file.lines, wanted.metadata
        )
        return json_response(await self._desk.view(batch))

    async def list_batches(self, http: web.Request) -> web.Response:
        token = await self._token(http)
        batches = [batch for batch in await self._store.batches(token) if not is_run(batch.endpoint)]
        page, more = page_of(batches, http.query, default=_PAGE, most=_LARGEST_PAGE)
        return json_response(page_view([await self._desk.view(batch) for batch in page], more=more))

    async def get_batch(self, http: web.Request) -> web.Response:
        kept = await self._asked_for(http, await self._token(http))
        return json_response(await self._desk.view(kept.batch))

    async def cancel(self, http: web.Request) -> web.Response:
        token = await self._token(http)
        kept = await self._asked_for(http, token)
        return json_response(await self._desk.view(await self._desk.cancel(token, kept.batch.id)))

    async def _asked_for(self, http: web.Request, token: str) -> Kept:
        return await self._desk.batch(token, http.match_info["batch"])

    async def _token(self, http: web.Request) -> str:
        return tenant_token((await self._desk.tenant(http)).name)

"""Stored responses over HTTP."""

from typing import Any

import structlog
from aiohttp import web

from paceline.gateway.dialects import responses_lookup
from paceline.gateway.dialects.responses import RESPONSES, SpokenResponses
from paceline.gateway.dialects.responses_store import ResponseStore, Shelf
from paceline.gateway.errors import Problem
from paceline.gateway.front import Front
from paceline.gateway.http_json import json_response

log = structlog.get_logger(__name__)


class StoredDialect:
    """A `Dialect`: responses with what one tenant has stored."""

    name = RESPONSES.name

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    def parse(self, body: bytes, *, vocab: int) -> SpokenResponses:
        spoken = RESPONSES.parse(body, vocab=vocab).resolve(self._store, self._tenant)
        if spoken.warnings:
            log.warning("request_ignored_in_part", what=list(spoken.warnings))
        # Worked out here, beside the event loop where it is long.
        _ = spoken.ask
        return spoken

    def problem(self, problem: Problem, request_id: str) -> Any:
        return RESPONSES.problem(problem, request_id)


class ResponseRoutes:
    """What clients may do with what was stored for them."""

    def __init__(self, front: Front, store: ResponseStore) -> None:
        self._front = front
        self._store = store

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/v1/responses/{id}", self._retrieve)
        app.router.add_delete("/v1/responses/{id}", self._delete)
        app.router.add_get("/v1/responses/{id}/input_items", self._input_items)

    async def _retrieve(self, http: web.Request) -> web.Response:
        body = responses_lookup.retrieve(self._shelf(http), http.match_info["id"])
        return web.Response(body=body, content_type="application/json")

    async def _delete(self, http: web.Request) -> web.Response:
        return json_response(responses_lookup.delete(self._shelf(http), http.match_info["id"]))

    async def _input_items(self, http: web.Request) -> web.Response:
        items = responses_lookup.input_items(self._shelf(http), http.match_info["id"], http.query)
        return json_response(items)

    def _shelf(self, http: web.Request) -> Shelf:
        return self._store.of(self._front.keys.tenant(http.headers).name)

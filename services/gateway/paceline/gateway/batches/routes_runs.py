"""POST /client/v4/accounts/{account}/ai/run/{model}?queueRequest=true"""

from aiohttp import web

from paceline.gateway.auth import Tenant
from paceline.gateway.batches.desk import Desk, missing
from paceline.gateway.batches.endpoints import run_endpoint
from paceline.gateway.batches.names import OUTCOMES, last_token, new_id, tenant_token
from paceline.gateway.batches.runs import Poll, Run, answered_view, parse_run, queued_view
from paceline.gateway.batches.store import Store
from paceline.gateway.front import Front
from paceline.gateway.http_json import json_response
from paceline.gateway.intake import read_body


class RunRoutes:
    """One endpoint with two uses."""

    def __init__(self, front: Front, desk: Desk, store: Store) -> None:
        self._front = front
        self._desk = desk
        self._store = store

    def wanted(self, http: web.Request) -> bool:
        """Whether a request to Workers AI's endpoint is to be queued, or asks for one that was."""
        return http.query.get("queueRequest") == "true"

    async def run(self, http: web.Request, model: str) -> web.Response:
        """Queue a request for `model`, or say what became of one."""
        tenant = await self._desk.tenant(http)
        settings = self._front.settings
        body = await read_body(
            http, self._front.uploads, limit=settings.max_body_bytes, timeout=settings.body_timeout_s
        )
        self._front.check_model(model)
        asked = parse_run(body)
        if isinstance(asked, Run):
            return await self._queue(tenant, model, asked)
        return await self._poll(tenant_token(tenant.name), model, asked)

    async def _queue(self, tenant: Tenant, model: str, run: Run) -> web.Response:
        await self._desk.check_batches(tenant_token(tenant.name))
        run_id = new_id("run_")
        for i, line in enumerate(run.lines):
            await self._store.put_data(run_id, i, line + b"\n")
        batch = await self._desk.submit(tenant, run_id, run_endpoint(model), run_id, len(run.lines))
        return json_response(queued_view(batch, batch.tally))

    async def _poll(self, tenant: str, model: str, poll: Poll) -> web.Response:
        batch = (await self._desk.batch(tenant, poll.request_id)).batch
        if batch.endpoint != run_endpoint(model):
            raise missing("request", poll.request_id)
        if not batch.over:
            return json_response(queued_view(batch, await self._store.progress(batch)))
        results = [
            (int(last_token(found.subject)), found.data)
            for outcome in OUTCOMES
            async for found in self._store.results(batch.id, outcome, batch.tally.upto)
        ]
        return json_response(answered_view(results))

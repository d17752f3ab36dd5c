"""What all routes need: who asks, whether there is a store, and how much is theirs already."""

import time
from typing import Any

from aiohttp import web

from paceline.bus.jetstream import Conflict, JetStream
from paceline.contracts.errors import Busy
from paceline.gateway.auth import Tenant
from paceline.gateway.batches import names
from paceline.gateway.batches.batch import WINDOW_S, Batch, Metadata, batch_view
from paceline.gateway.batches.files import File
from paceline.gateway.batches.queue import Queue
from paceline.gateway.batches.store import Kept, Store
from paceline.gateway.errors import Problem, Rejected
from paceline.gateway.front import Front

# Of each tenant, whatever their size; and how many of the largest.
_MOST_FILES, _MOST_LARGE_FILES = 1000, 10
_RETRY_S = 60.0


class Desk:
    """One for all tenants."""

    def __init__(self, front: Front, jetstream: JetStream, store: Store, queue: Queue) -> None:
        self._front = front
        self._js = jetstream
        self._store = store
        self._queue = queue
        self._made = False

    async def tenant(self, http: web.Request) -> Tenant:
        """Who asks. Raises `Rejected` with 401, and `Unavailable` when there is no JetStream."""
        tenant = self._front.keys.tenant(http.headers)
        if not self._made:
            await self._js.check()
            await self._store.make()
            await self._queue.make()
            self._made = True
        return tenant

    async def check_files(self, tenant: str) -> None:
        """Raises `Rejected` when no more files fit."""
        files = await self._store.files(tenant)
        limit = _MOST_LARGE_FILES * self._front.settings.batch_max_file_bytes
        if len(files) >= _MOST_FILES or sum(file.bytes for file in files) >= limit:
            message = f"At most {_MOST_FILES} files with {limit} bytes are kept: delete some"
            raise Rejected(Problem(413, message, "invalid_request_error", "storage_full"))

    async def file(self, tenant: str, file_id: str) -> File:
        """Raises `Rejected` with 404, also for another tenant's."""
        file = await self._store.file(tenant, file_id) if names.is_id(file_id) else None
        if file is None:
            raise missing("file", file_id)
        return file

    async def batch(self, tenant: str, batch_id: str) -> Kept:
        """Raises `Rejected` with 404, also for another tenant's."""
        kept = await self._store.batch(tenant, batch_id) if names.is_id(batch_id) else None
        if kept is None:
            raise missing("batch", batch_id)
        return kept

    async def check_batches(self, tenant: str) -> None:
        """Raises `Busy` when the tenant can have no more batches now."""
        most = self._front.settings.batch_max_batches
        if await self._queue.unfinished(tenant) >= most:
            raise Busy(f"At most {most} batches can run at the same time", retry_after_s=_RETRY_S)
        await self._store.make_room(tenant)

    async def submit(
        self,
        tenant: Tenant,
        batch_id: str,
        endpoint: str,
        input_file: str,
        total: int,
        metadata: Metadata | None = None,
    ) -> Batch:
        """A new batch, on its way."""
        now = int(time.time())
        batch = Batch(
            id=batch_id,
            tenant=tenant.name,
            salt=tenant.salt,
            endpoint=endpoint,
            input_file=input_file,
            total=total,
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=metadata,
        )
        token = names.tenant_token(tenant.name)
        # Should we die in between, the batch lies there without anybody who looks after it, and nobody was told its id.
        await self._store.add(token, batch)
        await self._queue.add_look(token, batch.id)
        return batch

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """Raises `Rejected` with 404, and `InvalidRequest` when the batch has ended otherwise."""
        while True:
            kept = await self.batch(tenant, batch_id)
            batch = kept.batch.cancelling(int(time.time()))
            if batch is kept.batch:
                return batch
            try:
                await self._store.replace(tenant, kept, batch)
            except Conflict:
                continue
            await self._queue.add_look(tenant, batch_id)
            return batch

    async def view(self, batch: Batch) -> dict[str, Any]:
        """As it stands now."""
        return batch_view(batch, await self._store.progress(batch))


def missing(kind: str, name: str) -> Rejected:
    return Rejected(Problem(404, f"There is no {kind} {name!r}", "invalid_request_error", "not_found"))

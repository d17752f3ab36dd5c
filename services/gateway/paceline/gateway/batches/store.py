"""Files, batches and results on the server's disk."""

from collections.abc import AsyncIterator

import msgspec

from paceline.bus.jetstream import Conflict, JetStream, Stored
from paceline.gateway.batches import names
from paceline.gateway.batches.batch import Batch, Part, Tally
from paceline.gateway.batches.files import KEEP_S, File, InputFile, OutputFile
from paceline.gateway.batches.names import Outcome

_MOST_BATCHES = 10_000
_STREAM = {
    "subjects": [names.STORED],
    "retention": "limits",
    "storage": "file",
    "max_msgs_per_subject": 1,
    "max_age": KEEP_S * 10**9,
    "allow_direct": True,
}

_files = msgspec.json.Decoder(InputFile | OutputFile)
_batches = msgspec.json.Decoder(Batch)


class Kept(msgspec.Struct, frozen=True):
    """A batch, and the version of it that was read."""

    batch: Batch
    version: int


class Store:
    """Tenants are given as `names.tenant_token` makes them, ids have passed `names.is_id`. All methods raise
    `Unavailable`."""

    def __init__(self, jetstream: JetStream) -> None:
        self._js = jetstream

    async def make(self) -> None:
        await self._js.stream(names.STORE, _STREAM)

    async def put_file(self, tenant: str, file: File) -> None:
        await self._js.put(names.file(tenant, file.id), msgspec.json.encode(file))

    async def file(self, tenant: str, file_id: str) -> File | None:
        found = await self._js.last(names.STORE, names.file(tenant, file_id))
        return _files.decode(found.data) if found else None

    async def files(self, tenant: str) -> list[File]:
        """The oldest first."""
        found = [_files.decode(m.data) async for m in self._js.scan(names.STORE, names.file(tenant))]
        return sorted(found, key=lambda file: file.id)

    async def delete_file(self, tenant: str, file: File) -> None:
        """With what it holds."""
        await self._js.drop(names.STORE, names.file(tenant, file.id))
        if isinstance(file, InputFile):
            await self.drop_data(file.id)
        else:
            await self._js.drop(names.STORE, names.result(file.batch, file.outcome))

    async def content(self, file: File) -> AsyncIterator[bytes]:
        """What a file holds, in pieces."""
        if isinstance(file, InputFile):
            async for chunk in self.data(file.id):
                yield chunk
        else:
            async for found in self.results(file.batch, file.outcome, file.upto):
                yield found.data + b"\n"

    async def put_data(self, file_id: str, chunk: int, data: bytes) -> None:
        await self._js.put(names.data(file_id, chunk), data)

    async def data(self, file_id: str) -> AsyncIterator[bytes]:
        async for found in self._js.scan(names.STORE, names.data(file_id)):
            yield found.data

    async def drop_data(self, file_id: str) -> None:
        await self._js.drop(names.STORE, names.data(file_id))

    async def add(self, tenant: str, batch: Batch) -> None:
        await self._js.put(names.batch(tenant, batch.id), msgspec.json.encode(batch), over=0)

    async def batch(self, tenant: str, batch_id: str) -> Kept | None:
        found = await self._js.last(names.STORE, names.batch(tenant, batch_id))
        return Kept(_batches.decode(found.data), found.sequence) if found else None

    async def batches(self, tenant: str) -> list[Batch]:
        """The oldest first."""
        found = [_batches.decode(m.data) async for m in self._js.scan(names.STORE, names.batch(tenant))]
        return sorted(found, key=lambda batch: batch.id)

    async def make_room(self, tenant: str) -> None:
        """Forget the batch that ended longest ago, with its results, when the tenant has as many as are kept."""
        if await self._js.count(names.STORE, names.batch(tenant)) < _MOST_BATCHES:
            return
        # What was written longest ago comes first.
        async for found in self._js.scan(names.STORE, names.batch(tenant)):
            batch = _batches.decode(found.data)
            if batch.over:
                for outcome in names.OUTCOMES:
                    if file_id := batch.output_id(outcome):
                        await self._js.drop(names.STORE, names.file(tenant, file_id))
                await self._js.drop(names.STORE, names.result(batch.id))
                await self._js.drop(names.STORE, found.subject)
                return

    async def replace(self, tenant: str, old: Kept, new: Batch) -> Kept:
        """Raises `Conflict` when the batch is not the `old` one any more."""
        subject = names.batch(tenant, new.id)
        return Kept(new, await self._js.put(subject, msgspec.json.encode(new), over=old.version))

    async def put_result(self, batch_id: str, line: int, outcome: Outcome, data: bytes) -> None:
        """The line's first result is the one that counts: others are dropped."""
        try:
            subject = names.result(batch_id, outcome, line)
            await self._js.put(subject, data, over=0, among=names.result(batch_id, "*", line))
        except Conflict:
            return

    async def has_result(self, batch_id: str, line: int) -> bool:
        return await self._js.count(names.STORE, names.result(batch_id, "*", line)) > 0

    async def results(self, batch_id: str, outcome: Outcome, upto: int) -> AsyncIterator[Stored]:
        """Those that were stored up to the message `upto`, in the order in which they were."""
        async for found in self._js.scan(names.STORE, names.result(batch_id, outcome)):
            if found.sequence > upto:
                return
            yield found

    async def finished_lines(self, batch_id: str) -> set[int]:
        """The numbers of those with a result."""
        return {int(names.last_token(m.subject)) async for m in self._results(batch_id)}

    async def progress(self, batch: Batch) -> Tally:
        """How many results there are now, without their sizes where they may still change."""
        if batch.frozen:
            return batch.tally
        completed = await self._js.count(names.STORE, names.result(batch.id, "completed"))
        failed = await self._js.count(names.STORE, names.result(batch.id, "failed"))
        return Tally(Part(completed), Part(failed))

    async def tally(self, batch_id: str) -> Tally:
        """What all results so far come to."""
        counts = {"completed": [0, 0], "failed": [0, 0]}
        upto = 0
        async for found in self._results(batch_id):
            part = counts[found.subject.split(".")[-2]]
            part[0] += 1
            part[1] += len(found.data) + 1
            upto = found.sequence
        return Tally(Part(*counts["completed"]), Part(*counts["failed"]), upto)

    def _results(self, batch_id: str) -> AsyncIterator[Stored]:
        return self._js.scan(names.STORE, names.result(batch_id))

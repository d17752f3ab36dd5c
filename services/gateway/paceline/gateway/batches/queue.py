"""The work of all batches: their items, and looks after them. Each piece goes to one gateway."""

import msgspec
from msgspec import Raw

from paceline.bus.jetstream import JetStream
from paceline.bus.work import Work
from paceline.gateway.batches import names
from paceline.gateway.batches.batch import WINDOW_S
from paceline.gateway.batches.lines import Numbered

_STREAM = {
    "subjects": [names.WORKED],
    "retention": "workqueue",
    "storage": "file",
    "allow_direct": True,
    # Longer than any batch lives.
    "max_age": 2 * WINDOW_S * 10**9,
}
_ITEMS, _LOOKS = "items", "looks"


class Item(msgspec.Struct, frozen=True):
    """One request of a batch. `tenant` is a token."""

    tenant: str
    batch: str
    line: int
    custom_id: str
    body: Raw


class Look(msgspec.Struct, frozen=True):
    """A batch that has to be looked after. `tenant` is a token."""

    tenant: str
    batch: str


class Queue:
    """All methods raise `Unavailable`."""

    def __init__(self, jetstream: JetStream) -> None:
        self._js = jetstream

    async def make(self) -> None:
        await self._js.stream(names.WORK, _STREAM)
        await self._js.consumer(names.WORK, _ITEMS, names.ITEMS)
        await self._js.consumer(names.WORK, _LOOKS, names.LOOKS)

    async def add_item(self, tenant: str, batch_id: str, numbered: Numbered) -> None:
        """Adding it twice is of no harm: it has one result all the same."""
        line = numbered.line
        item = Item(tenant, batch_id, numbered.number, line.custom_id, line.body)
        subject = names.item(batch_id, item.line)
        await self._js.put(subject, msgspec.json.encode(item), once=f"{batch_id}.{item.line}")

    async def drop_items(self, batch_id: str) -> None:
        await self._js.drop(names.WORK, names.item(batch_id))

    async def add_look(self, tenant: str, batch_id: str) -> None:
        await self._js.put(names.look(tenant, batch_id), msgspec.json.encode(Look(tenant, batch_id)))

    async def drop_looks(self, tenant: str, batch_id: str) -> None:
        await self._js.drop(names.WORK, names.look(tenant, batch_id))

    async def unfinished(self, tenant: str) -> int:
        """How many of the tenant's batches are looked after."""
        return await self._js.count(names.WORK, names.look(tenant))

    async def next_item(self) -> Work | None:
        return await self._js.pull(names.WORK, _ITEMS)

    async def next_look(self) -> Work | None:
        return await self._js.pull(names.WORK, _LOOKS)

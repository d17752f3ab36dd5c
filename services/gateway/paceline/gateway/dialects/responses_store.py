"""Responses that can be continued, for a while: in the memory of one gateway, each tenant's apart.

A response holds its own input only and names the one before it: a conversation is kept once, however long it gets.
Reading a response keeps the ones before it alive too: what has not been used for longest is forgotten first.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest

# What an item takes beside its JSON: the objects, and its place in the index.
_ITEM_BYTES = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may have stored: how many, how many bytes, and how many seconds after their last use."""

    responses: int = 1000
    size: int = 64 << 20
    ttl_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item of an input or output, as JSON."""

    id: str
    json: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, the items that it added to those of the `previous` one, and its output."""

    id: str
    previous: str | None
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]
    json: bytes

    @property
    def items(self) -> tuple[StoredItem, ...]:
        return self.input + self.output

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.json) + sum(_ITEM_BYTES + len(item.json) for item in self.items)


@dataclass(slots=True)
class _Entry:
    response: StoredResponse
    used: float


class Shelf:
    """One tenant's responses, the last used last. Safe to use from several threads at once."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self.size = 0
        self._lock = threading.RLock()
        self._limits = limits
        self._now = now
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._items: dict[str, StoredItem] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response: StoredResponse) -> None:
        """One that is larger than all that may be stored is not."""
        if response.size > self._limits.size:
            return
        with self._lock:
            self._entries[response.id] = _Entry(response, self._now())
            self._items |= {item.id: item for item in response.items}
            self.size += response.size
            while self.size > self._limits.size or len(self) > self._limits.responses:
                self.delete(next(iter(self._entries)))

    def get(self, response_id: str) -> StoredResponse | None:
        with self._lock:
            self.expire()
            entry = self._entries.get(response_id)
            if entry is None:
                return None
            entry.used = self._now()
            self._entries.move_to_end(response_id)
            return entry.response

    def item(self, item_id: str) -> StoredItem | None:
        with self._lock:
            self.expire()
            return self._items.get(item_id)

    def history(self, response_id: str | None) -> list[StoredItem]:
        """All items up to the end of a response, oldest first. Raises `InvalidRequest` if it or one before it is not
        stored any more."""
        responses = []
        while response_id is not None:
            if (response := self.get(response_id)) is None:
                message = f"The response {response_id!r} is not stored (any more)"
                raise InvalidRequest(message, param="previous_response_id")
            responses.append(response)
            response_id = response.previous
        return [item for response in reversed(responses) for item in response.items]

    def delete(self, response_id: str) -> bool:
        """Whether it was there."""
        with self._lock:
            entry = self._entries.pop(response_id, None)
            if entry is None:
                return False
            self.size -= entry.response.size
            for item in entry.response.items:
                if self._items.get(item.id) is item:
                    del self._items[item.id]
            return True

    def expire(self) -> None:
        """Forget what nobody used in time."""
        oldest = self._now() - self._limits.ttl_s
        with self._lock:
            while self._entries:
                response_id, entry = next(iter(self._entries.items()))
                if entry.used >= oldest:
                    return
                self.delete(response_id)


class ResponseStore:
    """All tenants' shelves, each with the whole of the limits. Safe to use from several threads at once."""

    def __init__(self, limits: Limits | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits or Limits()
        self._now = now
        self._shelves: dict[str, Shelf] = {}

    def of(self, tenant: str) -> Shelf:
        for shelf in list(self._shelves.values()):
            shelf.expire()
        return self._shelves.setdefault(tenant, Shelf(self._limits, self._now))

"""What clients may do with stored responses: read one, list its input, delete it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.responses_items import Message, read_item
from paceline.gateway.dialects.responses_store import Shelf, StoredItem, StoredResponse
from paceline.gateway.errors import Rejected, http_problem

MAX_PAGE = 100
_PAGE = 20


def retrieve(shelf: Shelf, response_id: str) -> bytes:
    """The response as JSON. Raises `Rejected` (404)."""
    return _stored(shelf, response_id).json


def delete(shelf: Shelf, response_id: str) -> dict[str, Any]:
    """Raises `Rejected` (404)."""
    _stored(shelf, response_id)
    shelf.delete(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def input_items(shelf: Shelf, response_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of all items that the model saw, those of earlier responses included: the newest first unless `order` is
    asc, `limit` of them, from behind the item `after`.

    Raises `Rejected` (404), and `InvalidRequest` for a query that cannot be met.
    """
    response = _stored(shelf, response_id)
    items = [*shelf.history(response.previous), *response.input]
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    if order == "desc":
        items.reverse()
    start = _behind(items, query["after"]) if "after" in query else 0
    stop = start + _limit(query.get("limit", str(_PAGE)))
    page = [_shown(item) for item in items[start:stop]]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": stop < len(items),
    }


def _stored(shelf: Shelf, response_id: str) -> StoredResponse:
    response = shelf.get(response_id)
    if response is None:
        raise Rejected(http_problem(404, f"The response {response_id!r} is not stored (any more)"))
    return response


def _behind(items: Sequence[StoredItem], item_id: str) -> int:
    for i, item in enumerate(items):
        if item.id == item_id:
            return i + 1
    raise InvalidRequest(f"The item {item_id!r} is not among them", param="after")


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidRequest(f"limit must be a whole number from 1 to {MAX_PAGE}", param="limit")
    return int(text)


def _shown(stored: StoredItem) -> dict[str, Any]:
    """An item in its long form, with what the model saw of it."""
    item = read_item(stored.json, "input")
    fields: dict[str, Any] = msgspec.to_builtins(item.value)
    if isinstance(item.value, Message):
        content = fields["content"]
        if isinstance(content, str):
            kind = "output_text" if item.value.role == "assistant" else "input_text"
            content = [{"type": kind, "text": content}]
        fields["content"] = [_part(part) for part in content]
    return {**fields, "id": stored.id, "type": item.kind, "status": "completed"}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "annotations": []} if part["type"] == "output_text" else part

"""Lists, a page at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from paceline.contracts.errors import InvalidRequest


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_HasId)


def page_of(items: Sequence[T], query: Mapping[str, str], *, default: int, most: int) -> tuple[list[T], bool]:
    """What `limit`, `after` and `order` ask for of items that are sorted by id, and whether there are more.

    Raises `InvalidRequest`.
    """
    limit = _limit(query.get("limit"), default, most)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be asc or desc", param="order")
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after := query.get("after"):
        # Ids sort by time, so that a page can begin behind an item that was deleted meanwhile.
        ordered = [item for item in ordered if (item.id > after if order == "asc" else item.id < after)]
    return ordered[:limit], len(ordered) > limit


def page_view(data: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """The page in OpenAI's shape."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


def _limit(text: str | None, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise InvalidRequest(f"limit must be a number from 1 to {most}", param="limit")
    return int(text)

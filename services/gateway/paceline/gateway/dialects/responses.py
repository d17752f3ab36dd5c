"""POST /v1/responses.

`parse` knows no store. What a request takes from one is there after `resolve`, and what it leaves there is put when its
answer ends.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import orjson

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Ask, Conversation
from paceline.gateway.deltas import Answer
from paceline.gateway.dialects.responses_conversation import messages
from paceline.gateway.dialects.responses_events import ResponseEvents
from paceline.gateway.dialects.responses_items import Item, Message, Reference, read_item
from paceline.gateway.dialects.responses_object import ended, frame
from paceline.gateway.dialects.responses_output import output_of
from paceline.gateway.dialects.responses_request import ResponsesRequest, read_request
from paceline.gateway.dialects.responses_store import ResponseStore, Shelf, StoredItem, StoredResponse
from paceline.gateway.dialects.responses_tools import Offer, offer
from paceline.gateway.errors import Problem


@dataclass(frozen=True)
class SpokenResponses:
    """A `Spoken`. `items` are those of the request itself, `history` is what comes before them."""

    request: ResponsesRequest
    items: tuple[Item, ...]
    offer: Offer
    history: tuple[StoredItem, ...] = ()
    shelf: Shelf | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the request is ignored, for the log."""
        return self.offer.warnings

    def resolve(self, store: ResponseStore, tenant: str) -> "SpokenResponses":
        """The same with all that it refers to; its answer will be stored, unless the request says otherwise.

        Raises `InvalidRequest` for what is not stored. It is quick, while `ask` takes time for a long conversation.
        """
        shelf = store.of(tenant)
        history = tuple(shelf.history(self.request.previous_response_id))
        items = tuple(_found(shelf, item, f"input[{i}]") for i, item in enumerate(self.items))
        return replace(self, items=items, history=history, shelf=shelf)

    @cached_property
    def ask(self) -> Ask:
        """Raises `InvalidRequest` for what makes no conversation, and for what would have to be resolved first."""
        request = self.request
        return Ask(
            model=request.model or "",
            prompts=(Conversation(self._messages(), request.options()),),
            sampling=request.sampling(),
            tools=self.offer.use,
            shape=request.shape(),
            logprobs=request.logprobs,
            stream=bool(request.stream),
            cache_key=request.prompt_cache_key,
            low_priority=request.low_priority,
        )

    def renderer(self, head: Head) -> ResponseEvents:
        return ResponseEvents(
            head,
            self._frame(head),
            self.offer.names,
            log=self.request.logprobs is not None,
            keep=partial(self._keep, head),
        )

    def whole(self, head: Head, answers: Sequence[Answer], usage: Usage) -> Any:
        (answer,) = answers
        output = output_of(answer, head, self.offer.names, log=self.request.logprobs is not None)
        cut = answer.end.reason == "length"
        response = ended(self._frame(head), output, usage, cut=cut, at=time.time())
        self._keep(head, response)
        return response

    def _messages(self) -> list[dict[str, Any]]:
        if self.shelf is None and self.request.previous_response_id is not None:
            raise InvalidRequest("No responses are stored here", param="previous_response_id")
        for i, item in enumerate(self.items):
            if isinstance(item.value, Reference):
                raise InvalidRequest("No items are stored here", param=f"input[{i}]")
        history = [read_item(item.json, "previous_response_id") for item in self.history]
        turns = messages(self.request.instructions, [*history, *self.items])
        if not turns:
            raise InvalidRequest("input must hold at least one message", param="input")
        return turns

    def _frame(self, head: Head) -> dict[str, Any]:
        return frame(self.request, self.offer, head, stored=self._shelf_for_answer() is not None)

    def _shelf_for_answer(self) -> Shelf | None:
        return None if self.request.store is False else self.shelf

    def _keep(self, head: Head, response: dict[str, Any]) -> None:
        shelf = self._shelf_for_answer()
        if shelf is None:
            return
        shelf.put(
            StoredResponse(
                id=response["id"],
                previous=self.request.previous_response_id,
                input=tuple(
                    StoredItem(item.value.id or f"item_{head.request_id}{i:02x}", item.json)
                    for i, item in enumerate(self.items)
                ),
                output=tuple(StoredItem(item["id"], orjson.dumps(item)) for item in response["output"]),
                json=orjson.dumps(response),
            )
        )


class Responses:
    """A `Dialect`."""

    name = "responses"

    def parse(self, body: bytes, *, vocab: int) -> SpokenResponses:
        request = read_request(body)
        offered = offer(request.tools, request.tool_choice, parallel=request.parallel_tool_calls is not False)
        return SpokenResponses(request, _items(request), offered)

    def problem(self, problem: Problem, request_id: str) -> Any:
        return problem.body()


RESPONSES = Responses()


def _items(request: ResponsesRequest) -> tuple[Item, ...]:
    if isinstance(request.input, str):
        json = orjson.dumps({"type": "message", "role": "user", "content": request.input})
        return (Item(json, "message", Message("user", request.input)),)
    return tuple(read_item(item, f"input[{i}]") for i, item in enumerate(request.input or ()))


def _found(shelf: Shelf, item: Item, at: str) -> Item:
    if not isinstance(item.value, Reference):
        return item
    stored = shelf.item(item.value.id)
    if stored is None:
        raise InvalidRequest(f"The item {item.value.id!r} is not stored (any more)", param=f"{at}.id")
    return read_item(stored.json, at)

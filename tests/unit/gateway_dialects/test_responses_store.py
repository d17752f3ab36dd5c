"""Responses that are kept: continued, referred to, read, listed, deleted, and forgotten in time."""

import json
from typing import Any

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.answer import Head, Usage
from paceline.gateway.ask import Conversation
from paceline.gateway.deltas import Answer, CallArguments, CallBegun, Delta, End, Reasoning, Text, ToolCall
from paceline.gateway.dialects.responses import RESPONSES, SpokenResponses
from paceline.gateway.dialects.responses_lookup import delete, input_items, retrieve
from paceline.gateway.dialects.responses_store import Limits, ResponseStore, Shelf, StoredItem, StoredResponse
from paceline.gateway.errors import Problem, Rejected

USAGE = Usage(1, 1, 0.0, None, None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spoken(kept: ResponseStore, tenant: str = "t", **fields: Any) -> SpokenResponses:
    return RESPONSES.parse(json.dumps(fields).encode(), vocab=1).resolve(kept, tenant)


def messages(request: SpokenResponses) -> list[dict[str, Any]]:
    (prompt,) = request.ask.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def answer(store: ResponseStore, request_id: str, text: str, **fields: Any) -> dict[str, Any]:
    response: dict[str, Any] = spoken(store, **fields).whole(Head(request_id, "m", 1), [Answer(text)], USAGE)
    return response


def stored(name: str, *, size: int = 0, previous: str | None = None) -> StoredResponse:
    items = (StoredItem(f"item_{name}", b"{}"),)
    return StoredResponse(name, previous, (), items, b"x" * size)


@pytest.fixture
def store() -> ResponseStore:
    return ResponseStore()


def test_a_response_is_continued_with_all_that_came_before(store: ResponseStore) -> None:
    first = answer(store, "a1", "One.", input="1?", instructions="Not carried over.")
    assert first["store"] is True
    second = answer(store, "a2", "Two.", input="2?", previous_response_id=first["id"])
    third = spoken(store, input="3?", previous_response_id=second["id"], instructions="Be brief.")
    assert messages(third) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "3?"},
    ]


def test_a_streamed_response_is_continued_with_its_calls(store: ResponseStore) -> None:
    tools = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    renderer = spoken(store, input="?", tools=tools).renderer(Head("a1", "m", 1))
    renderer.begin(USAGE)
    deltas: list[Delta] = [
        Reasoning("hm"),
        Text("On it."),
        CallBegun(0, "c", "n__f"),
        CallArguments(0, '{"a":1}'),
    ]
    renderer.deltas(0, deltas, ())
    renderer.finish(0, End("tool_calls"))
    renderer.end(USAGE)
    output = {"type": "function_call_output", "call_id": "c", "output": "2"}
    assert messages(spoken(store, input=[output], previous_response_id="resp_a1")) == [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": "On it.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "n__f", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "name": "n__f", "content": "2"},
    ]


def test_a_continuation_may_add_nothing(store: ResponseStore) -> None:
    answer(store, "a1", "One.", input="1?")
    assert len(messages(spoken(store, previous_response_id="resp_a1"))) == 2


def test_an_item_may_be_referred_to(store: ResponseStore) -> None:
    calls = [ToolCall("c", "f", "{}")]
    spoken(store, input="?").whole(Head("a1", "m", 1), [Answer(calls=calls)], USAGE)
    items = [
        {"role": "user", "content": "?"},
        {"type": "item_reference", "id": "fc_a100"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    again = spoken(store, input=items)
    assert [m["role"] for m in messages(again)] == ["user", "assistant", "tool"]
    again.whole(Head("a2", "m", 1), [Answer("Done.")], USAGE)
    listed = input_items(store.of("t"), "resp_a2", {"order": "asc"})["data"]
    assert [i["type"] for i in listed] == ["message", "function_call", "function_call_output"]
    assert [m["role"] for m in messages(spoken(store, input=[{"id": "msg_a200"}]))] == ["assistant"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "?", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
    ],
)
def test_what_is_not_stored_is_refused(store: ResponseStore, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as e:
        spoken(store, **fields)
    assert e.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "?", "previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0]"),
    ],
)
def test_without_a_store_nothing_can_be_referred_to(fields: dict[str, Any], param: str) -> None:
    request = RESPONSES.parse(json.dumps(fields).encode(), vocab=1)
    with pytest.raises(InvalidRequest) as e:
        request.ask  # noqa: B018 - it raises
    assert e.value.param == param


def test_nothing_is_kept_of_what_is_not_to_be_stored_or_failed(store: ResponseStore) -> None:
    request = spoken(store, input="?", store=False)
    assert request.whole(Head("a1", "m", 1), [Answer("One.")], USAGE)["store"] is False
    renderer = spoken(store, input="?").renderer(Head("a2", "m", 1))
    renderer.error(Problem(502, "m", "server_error", "worker_lost"))
    assert len(store.of("t")) == 0


def test_tenants_know_nothing_of_each_other(store: ResponseStore) -> None:
    answer(store, "a1", "One.", input="?")
    for fields in ({"previous_response_id": "resp_a1"}, {"input": [{"id": "msg_a100"}]}):
        with pytest.raises(InvalidRequest):
            spoken(store, "other", **fields)
    with pytest.raises(Rejected):
        retrieve(store.of("other"), "resp_a1")


def test_a_response_can_be_read_and_deleted(store: ResponseStore) -> None:
    response = answer(store, "a1", "One.", input="?")
    shelf = store.of("t")
    assert json.loads(retrieve(shelf, "resp_a1")) == response
    assert delete(shelf, "resp_a1") == {"id": "resp_a1", "object": "response", "deleted": True}
    assert (len(shelf), shelf.size, shelf.item("msg_a100")) == (0, 0, None)
    for lookup in (retrieve, delete):
        with pytest.raises(Rejected) as e:
            lookup(shelf, "resp_a1")
        assert (e.value.problem.status, e.value.problem.code) == (404, "not_found")


def test_the_input_is_listed_in_pages_and_in_full(store: ResponseStore) -> None:
    answer(store, "a1", "One.", input="1?")
    own = [{"role": "assistant", "content": "So?"}, {"role": "user", "content": "2?", "id": "msg_own"}]
    answer(store, "a2", "Two.", input=own, previous_response_id="resp_a1")
    shelf = store.of("t")
    first = {
        "id": "item_a100",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "1?"}],
    }
    said = {
        "id": "msg_a100",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "One.", "annotations": []}],
    }
    third = {
        "id": "item_a200",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "So?", "annotations": []}],
    }
    last = {**first, "id": "msg_own", "content": [{"type": "input_text", "text": "2?"}]}
    assert input_items(shelf, "resp_a2", {}) == {
        "object": "list",
        "data": [last, third, said, first],
        "first_id": "msg_own",
        "last_id": "item_a100",
        "has_more": False,
    }
    assert input_items(shelf, "resp_a2", {"order": "asc", "limit": "2", "after": "item_a100"}) == {
        "object": "list",
        "data": [said, third],
        "first_id": "msg_a100",
        "last_id": "item_a200",
        "has_more": True,
    }
    assert input_items(shelf, "resp_a2", {"after": "item_a100"}) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "\u0663"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "x"}, "after"),
    ],
)
def test_a_query_that_cannot_be_met_is_named(store: ResponseStore, query: dict[str, str], param: str) -> None:
    answer(store, "a1", "One.", input="?")
    with pytest.raises(InvalidRequest) as e:
        input_items(store.of("t"), "resp_a1", query)
    assert e.value.param == param


def test_too_many_responses_push_out_what_was_used_least_recently() -> None:
    shelf = Shelf(Limits(responses=2), Clock())
    shelf.put(stored("a"))
    shelf.put(stored("b"))
    assert shelf.get("a") is not None
    shelf.put(stored("c"))
    assert [shelf.get(name) is not None for name in "abc"] == [True, False, True]
    assert (shelf.item("item_a"), shelf.item("item_b")) == (StoredItem("item_a", b"{}"), None)


def test_bytes_are_bounded_and_what_is_too_large_pushes_nothing_out() -> None:
    size = stored("a", size=1000).size
    shelf = Shelf(Limits(size=2 * size), Clock())
    for name in "abc":
        shelf.put(stored(name, size=1000))
    assert shelf.size == 2 * size
    shelf.put(stored("d", size=3000))
    assert [shelf.get(name) is not None for name in "abcd"] == [False, True, True, False]


def test_what_nobody_uses_is_forgotten_in_time() -> None:
    clock = Clock()
    store = ResponseStore(Limits(ttl_s=10), clock)
    shelf = store.of("t")
    shelf.put(stored("a"))
    shelf.put(stored("b"))
    clock.now = 10
    assert shelf.get("a") is not None
    clock.now = 11
    assert (shelf.get("b"), shelf.item("item_b")) == (None, None)
    clock.now = 21
    assert store.of("other") is not shelf
    assert (len(shelf), shelf.size) == (0, 0)


def test_to_continue_a_response_keeps_those_before_it() -> None:
    shelf = Shelf(Limits(responses=3), Clock())
    shelf.put(stored("a"))
    shelf.put(stored("b", previous="a"))
    shelf.put(stored("x"))
    assert [item.id for item in shelf.history("b")] == ["item_a", "item_b"]
    shelf.put(stored("y"))
    assert [shelf.get(name) is not None for name in "abxy"] == [True, True, False, True]
    shelf.delete("a")
    with pytest.raises(InvalidRequest, match="'a'"):
        shelf.history("b")


def test_an_item_that_two_responses_hold_outlives_the_older_one() -> None:
    shelf = Shelf(Limits(), Clock())
    shelf.put(stored("a"))
    newer = StoredItem("item_a", b"[]")
    shelf.put(StoredResponse("b", None, (newer,), (), b""))
    shelf.delete("a")
    assert shelf.item("item_a") == newer


def test_unknown_fields_of_an_item_are_not_shown_whatever_they_hold(store: ResponseStore) -> None:
    body = b'{"input":[{"role":"user","content":"?","x":"\xff","y":' + b"[" * 900 + b"]" * 900 + b"}]}"
    RESPONSES.parse(body, vocab=1).resolve(store, "t").whole(Head("a1", "m", 1), [Answer("One.")], USAGE)
    (item,) = input_items(store.of("t"), "resp_a1", {})["data"]
    assert item.keys() == {"id", "type", "status", "role", "content"}

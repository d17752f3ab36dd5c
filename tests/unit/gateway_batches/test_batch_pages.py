"""Pages of lists, names, and results."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches import names
from paceline.gateway.batches.files import InputFile, OutputFile, file_view
from paceline.gateway.batches.paging import page_of, page_view
from paceline.gateway.batches.results import answered, expired, outcome_of


def files(*ids: str) -> list[InputFile]:
    return [InputFile(id=i, filename="f", created_at=1, bytes=2, lines=3, urls=()) for i in ids]


def test_pages_are_newest_first_and_follow_each_other() -> None:
    items = files("a", "b", "c", "d", "e")
    first, more = page_of(items, {"limit": "2"}, default=20, most=100)
    assert ([item.id for item in first], more) == (["e", "d"], True)
    second, more = page_of(items, {"limit": "3", "after": "d"}, default=20, most=100)
    assert ([item.id for item in second], more) == (["c", "b", "a"], False)
    upwards, more = page_of(items, {"order": "asc", "after": "b"}, default=2, most=100)
    assert ([item.id for item in upwards], more) == (["c", "d"], True)


def test_a_page_may_follow_what_was_deleted() -> None:
    page, _ = page_of(files("a", "c"), {"after": "b"}, default=20, most=100)
    assert [item.id for item in page] == ["a"]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "", "1.5", "²", "9" * 5000])
def test_a_limit_out_of_range_is_named(limit: str) -> None:
    with pytest.raises(InvalidRequest, match="limit must be a number from 1 to 100") as error:
        page_of(files("a"), {"limit": limit}, default=20, most=100)
    assert error.value.param == "limit"


def test_an_unknown_order_is_named() -> None:
    with pytest.raises(InvalidRequest, match="order must be asc or desc"):
        page_of(files("a"), {"order": "up"}, default=20, most=100)


def test_the_ends_of_a_page_are_named() -> None:
    view = page_view([{"id": "b"}, {"id": "a"}], more=True)
    assert (view["first_id"], view["last_id"], view["has_more"]) == ("b", "a", True)
    empty = page_view([], more=False)
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_files_as_openai_shows_them() -> None:
    (file,) = files("file-1")
    assert file_view(file) == {
        "id": "file-1",
        "object": "file",
        "bytes": 2,
        "created_at": 1,
        "expires_at": 14 * 86_400 + 1,
        "filename": "f",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    output = OutputFile(id="o", filename="f", created_at=1, bytes=2, batch="b", outcome="failed", upto=9)
    assert file_view(output)["purpose"] == "batch_output"


def test_results_are_lines_of_an_output_file() -> None:
    assert json.loads(answered("batch_ab", 3, "mine", "r1", 200, {"x": 1})) == {
        "id": "batch_req_ab000003",
        "custom_id": "mine",
        "response": {"status_code": 200, "request_id": "r1", "body": {"x": 1}},
        "error": None,
    }
    late = json.loads(expired("batch_ab", 3, "mine"))
    assert (late["response"], late["error"]["code"]) == (None, "batch_expired")
    assert (outcome_of(200), outcome_of(400)) == ("completed", "failed")


def test_ids_sort_by_time_and_are_safe_in_subjects() -> None:
    made = [names.new_id("batch_") for _ in range(100)]
    assert len(set(made)) == 100
    assert [i[:18] for i in made] == sorted(i[:18] for i in made)
    assert all(names.is_id(i) for i in made)


@given(st.text())
def test_no_text_of_a_client_is_a_wildcard(text: str) -> None:
    assert names.is_id(text) == (
        0 < len(text) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)
    )
    token = names.tenant_token(text)
    assert len(token) == 16
    assert names.is_id(token)


def test_subjects_tell_what_they_are_of() -> None:
    subject = names.item("batch_1", 7)
    assert (names.batch_of(subject), names.last_token(subject)) == ("batch_1", "7")

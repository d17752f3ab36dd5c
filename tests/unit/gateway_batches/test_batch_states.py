"""The states of a batch, and how clients see them."""

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.batch import Batch, Part, Tally, batch_view

NEW = Batch(
    id="batch_1",
    tenant="t",
    salt=b"",
    endpoint="/v1/completions",
    input_file="file-1",
    total=3,
    created_at=100,
    expires_at=86_500,
    metadata={"k": "v"},
)
TALLY = Tally(Part(2, 50), Part(1, 20), 9)


def test_a_new_batch_as_openai_shows_it() -> None:
    assert batch_view(NEW, Tally()) == {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/completions",
        "errors": None,
        "input_file_id": "file-1",
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": 100,
        "in_progress_at": None,
        "expires_at": 86_500,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 3, "completed": 0, "failed": 0},
        "metadata": {"k": "v"},
    }


def test_a_batch_completes_and_names_its_files_only_then() -> None:
    begun = NEW.begun(101)
    assert (begun.status, begun.in_progress_at, begun.runs) == ("in_progress", 101, True)
    closing = begun.closing("completed", TALLY, 102)
    assert (closing.status, closing.finalizing_at, closing.runs, closing.over) == (
        "finalizing",
        102,
        False,
        False,
    )
    shown = batch_view(closing, TALLY)
    assert (shown["status"], shown["output_file_id"], shown["error_file_id"]) == ("finalizing", None, None)
    ended = closing.ended(103)
    shown = batch_view(ended, TALLY)
    assert shown["status"] == "completed"
    assert (shown["completed_at"], shown["expired_at"], shown["cancelled_at"]) == (103, None, None)
    assert (shown["output_file_id"], shown["error_file_id"]) == ("file-1-output", "file-1-error")
    assert shown["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert ended.over


def test_there_is_no_file_for_what_did_not_happen() -> None:
    ended = NEW.closing("completed", Tally(Part(3, 60), Part(), 9), 102).ended(103)
    assert (ended.output_id("completed"), ended.output_id("failed")) == ("file-1-output", None)


def test_a_batch_that_is_cancelled_is_cancelling_until_its_files_are_there() -> None:
    cancelling = NEW.begun(101).cancelling(102)
    assert (cancelling.status, cancelling.cancelling_at, cancelling.runs) == ("cancelling", 102, False)
    assert cancelling.cancelling(103) is cancelling
    closing = cancelling.closing("cancelled", TALLY, 104)
    assert batch_view(closing, TALLY)["status"] == "cancelling"
    ended = closing.ended(105)
    assert (ended.status, ended.cancelled_at) == ("cancelled", 105)
    assert ended.cancelling(106) is ended


@pytest.mark.parametrize("ends_as", ["completed", "expired"])
def test_a_batch_that_ended_otherwise_cannot_be_cancelled(ends_as: str) -> None:
    closing = NEW.closing(ends_as, TALLY, 102)  # type: ignore[arg-type]  # parametrized by text
    for batch, status in ((closing, "finalizing"), (closing.ended(103), ends_as)):
        with pytest.raises(InvalidRequest, match=f"A batch that is {status} cannot be cancelled"):
            batch.cancelling(104)


def test_a_batch_that_cannot_begin_says_why() -> None:
    shown = batch_view(NEW.broken("The file is gone", 101), Tally())
    assert (shown["status"], shown["failed_at"]) == ("failed", 101)
    error = {"code": "invalid_file", "message": "The file is gone", "param": "input_file_id", "line": None}
    assert shown["errors"] == {"object": "list", "data": [error]}
    with pytest.raises(InvalidRequest, match="failed"):
        NEW.broken("The file is gone", 101).cancelling(102)

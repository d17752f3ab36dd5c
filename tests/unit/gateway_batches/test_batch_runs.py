"""Workers AI's queued requests."""

import json

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.batch import Batch, Part, Tally
from paceline.gateway.batches.results import answered, expired
from paceline.gateway.batches.runs import Poll, Run, answered_view, parse_run, queued_view

BATCH = Batch(
    id="run_1",
    tenant="t",
    salt=b"",
    endpoint="/ai/run/m",
    input_file="run_1",
    total=1,
    created_at=1,
    expires_at=2,
)


def test_one_request_is_a_run_of_one() -> None:
    run = parse_run(b'{"prompt":\n "hi"}')
    assert isinstance(run, Run)
    assert [json.loads(line) for line in run.lines] == [{"custom_id": "", "body": {"prompt": "hi"}}]
    assert all(b"\n" not in line for line in run.lines)


def test_several_requests_keep_their_references() -> None:
    run = parse_run(b'{"requests": [{"prompt": "a", "external_reference": "x"}, {"prompt": "b"}]}')
    assert isinstance(run, Run)
    assert [json.loads(line)["custom_id"] for line in run.lines] == ["x", ""]


def test_a_request_id_is_a_poll() -> None:
    assert parse_run(b'{"request_id": "run_1"}') == Poll("run_1")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"[]", None),
        (b'{"requests": []}', "requests"),
        (b'{"requests": 1}', "requests"),
        (b'{"requests": [{}, 1]}', "requests[1]"),
        (b'{"requests": [{"external_reference": 1}]}', "requests[0].external_reference"),
        (b'{"request_id": 1}', "request_id"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_run(body)
    assert error.value.param == param


def test_before_the_answer_there_is_a_status() -> None:
    queued = {"status": "queued", "request_id": "run_1", "model": "m"}
    envelope = {"result": queued, "success": True, "errors": [], "messages": []}
    assert queued_view(BATCH, Tally()) == envelope
    assert queued_view(BATCH, Tally(failed=Part(1)))["result"]["status"] == "running"


def test_answers_come_in_the_order_of_the_requests() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    good = {"result": {"response": "x", "usage": usage}, "success": True, "errors": [], "messages": []}
    bad = {"result": None, "success": False, "errors": [{"code": 5004, "message": "no"}], "messages": []}
    results = [
        (4, expired("run_1", 4, "")),
        (3, answered("run_1", 3, "c", "r", 200, good)),
        (2, answered("run_1", 2, "", "r", 400, bad)),
        (1, answered("run_1", 1, "a", "r", 200, good)),
    ]
    result = answered_view(results)["result"]
    assert [(r["id"], r["success"], r["external_reference"]) for r in result["responses"]] == [
        (0, True, "a"),
        (1, False, None),
        (2, True, "c"),
        (3, False, None),
    ]
    assert result["responses"][0]["result"] == good["result"]
    assert result["responses"][1]["errors"] == bad["errors"]
    assert result["responses"][3]["errors"][0]["code"] == 3007
    assert result["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}

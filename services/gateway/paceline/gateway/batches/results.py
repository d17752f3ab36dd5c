"""The result of one request, as a line of an output file."""

from typing import Any

import orjson

from paceline.gateway.batches.names import Outcome


def outcome_of(status: int) -> Outcome:
    return "completed" if status == 200 else "failed"


def answered(batch_id: str, line: int, custom_id: str, request_id: str, status: int, body: Any) -> bytes:
    """What the endpoint said to the request that is `request_id` in logs and traces."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(batch_id, line, custom_id, response, None)


def expired(batch_id: str, line: int, custom_id: str) -> bytes:
    """The request had no turn in time."""
    error = {"code": "batch_expired", "message": "The request was not run within the completion window"}
    return _line(batch_id, line, custom_id, None, error)


def _line(batch_id: str, line: int, custom_id: str, response: Any, error: Any) -> bytes:
    result = {
        "id": f"batch_req_{batch_id.rpartition('_')[2]}{line:06x}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(result)

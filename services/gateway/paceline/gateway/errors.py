"""What a client is told when something goes wrong: OpenAI's nested error body and the HTTP status that goes with it."""

import math
from dataclasses import dataclass
from typing import Any

import orjson

from paceline.contracts import errors as e


@dataclass(frozen=True)
class Problem:
    """One error as clients see it. `type` server_error is what makes agents retry."""

    status: int
    message: str
    type: str
    code: str
    param: str | None = None
    retry_after_s: int | None = None

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code},
        }

    def encode(self) -> bytes:
        return orjson.dumps(self.body())

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class Rejected(Exception):
    """Ends a request with a problem that has no counterpart inside the mesh."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


_INVALID = "invalid_request_error"
_SERVER = "server_error"

# class: (status, type, code), the first match counts
_TABLE: list[tuple[type[e.PacelineError], int, str, str]] = [
    (e.ContextTooLong, 400, _INVALID, "context_length_exceeded"),
    (e.InvalidRequest, 400, _INVALID, "invalid_value"),
    (e.ModelNotFound, 404, _INVALID, "model_not_found"),
    (e.Busy, 429, "rate_limit_error", "rate_limit_exceeded"),
    (e.Unavailable, 503, _SERVER, "service_unavailable"),
    (e.WorkerLost, 502, _SERVER, "worker_lost"),
]


def problem_of(error: e.PacelineError) -> Problem:
    """The problem that an error of the mesh is for the client. Faults of ours keep their details to themselves."""
    for cls, status, kind, code in _TABLE:
        if isinstance(error, cls):
            retry = retry_after(error)
            return Problem(status, error.message, kind, code, getattr(error, "param", None), retry)
    return Problem(500, "The server failed to answer this request", _SERVER, error.code)


def retry_after(error: e.PacelineError) -> int | None:
    """Whole seconds, at least 1, for the errors that pass by themselves."""
    if isinstance(error, e.Busy):
        return max(1, math.ceil(error.retry_after_s))
    return 1 if isinstance(error, e.Unavailable) else None


def too_large(limit: int) -> Problem:
    return Problem(413, f"The body is larger than {limit} bytes", _INVALID, "request_too_large")


def unauthorized() -> Problem:
    return Problem(401, "Missing or incorrect API key", _INVALID, "invalid_api_key")


def timed_out(seconds: float) -> Problem:
    return Problem(504, f"The request did not finish within {seconds:g} s", _SERVER, "timeout")


def body_timed_out() -> Problem:
    return Problem(408, "The body did not arrive in time", _INVALID, "request_timeout")


def http_problem(status: int, message: str) -> Problem:
    """For errors of HTTP itself: no such route, wrong method."""
    codes = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
    return Problem(status, message, _INVALID if status < 500 else _SERVER, codes.get(status, "http_error"))


def internal() -> Problem:
    return problem_of(e.InternalError("unexpected"))

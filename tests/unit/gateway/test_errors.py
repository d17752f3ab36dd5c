"""What clients are told when something goes wrong."""

import pytest

from paceline.contracts import errors as e
from paceline.gateway.errors import Problem, internal, problem_of, too_large


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (e.InvalidRequest("m", param="n"), Problem(400, "m", "invalid_request_error", "invalid_value", "n")),
        (e.ContextTooLong("m"), Problem(400, "m", "invalid_request_error", "context_length_exceeded")),
        (e.ModelNotFound("m"), Problem(404, "m", "invalid_request_error", "model_not_found")),
        (
            e.Busy("m", retry_after_s=2.1),
            Problem(429, "m", "rate_limit_error", "rate_limit_exceeded", None, 3),
        ),
        (e.Unavailable("m"), Problem(503, "m", "server_error", "service_unavailable", None, 1)),
        (e.WorkerLost("m"), Problem(502, "m", "server_error", "worker_lost")),
    ],
)
def test_errors_of_the_mesh_become_problems(error: e.PacelineError, problem: Problem) -> None:
    assert problem_of(error) == problem


@pytest.mark.parametrize("cls", [e.IntegrityError, e.ProtocolError, e.InternalError, e.Cancelled])
def test_faults_of_ours_are_server_errors_without_details(cls: type[e.PacelineError]) -> None:
    problem = problem_of(cls("page 7 of worker x"))
    assert (problem.status, problem.type, problem.code) == (500, "server_error", cls.code)
    assert "page 7" not in problem.message


def test_every_error_body_has_the_four_keys() -> None:
    assert too_large(8).body() == {
        "error": {
            "message": "The body is larger than 8 bytes",
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    }
    assert internal().body()["error"].keys() == {"message", "type", "param", "code"}


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert problem_of(e.Busy("m", retry_after_s=0.01)).headers() == {"Retry-After": "1"}
    assert problem_of(e.WorkerLost("m")).headers() == {}

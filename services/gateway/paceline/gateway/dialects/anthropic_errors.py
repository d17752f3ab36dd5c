"""Problems in Anthropic's words."""

import re
from typing import Any

from paceline.gateway.errors import Problem

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

# As the mesh says that a context is too long: first what fits, then what was asked for.
_LIMIT_AND_TOKENS = re.compile(r"maximum context length is (\d+) tokens\D+(\d+)")


def problem_body(problem: Problem, request_id: str) -> dict[str, Any]:
    """The body of an error response and of an `error` event."""
    kind = _TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": _message(problem)},
        "request_id": request_id,
    }


def _message(problem: Problem) -> str:
    """The body has no field for what is wrong, so the message begins with it."""
    if problem.code == "context_length_exceeded":
        # Claude Code reads the numbers to compact its conversation.
        if found := _LIMIT_AND_TOKENS.search(problem.message):
            return f"prompt is too long: {found[2]} tokens > {found[1]} maximum"
        return f"prompt is too long: {problem.message}"
    return f"{problem.param}: {problem.message}" if problem.param else problem.message

"""HTTP responses with JSON bodies."""

from typing import Any

import orjson
from aiohttp import web

from paceline.gateway.errors import Problem

_JSON = "application/json"


def json_response(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=_JSON)


def problem_response(problem: Problem, body: Any = None) -> web.Response:
    """An error, in OpenAI's shape unless there is a `body`."""
    response = web.Response(
        body=orjson.dumps(body or problem.body()),
        status=problem.status,
        content_type=_JSON,
        headers=problem.headers(),
    )
    if problem.status in (408, 413):
        # The rest of the body is still on its way; the connection is of no more use.
        response.force_close()
    return response

"""The gateway's HTTP surface: routes, and what holds for every response."""

import uuid

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from paceline.gateway.answer import models
from paceline.gateway.chat import Exchange
from paceline.gateway.errors import Rejected, http_problem, internal
from paceline.gateway.front import Front
from paceline.gateway.metrics import CONTENT_TYPE
from paceline.gateway.responses import json_response, problem_response

log = structlog.get_logger(__name__)

_REQUEST_ID = web.RequestKey("request_id", str)


def build_app(front: Front) -> web.Application:
    """The application; run it with handler cancellation, which is how a client's leaving is noticed."""
    app = web.Application(middlewares=[_boundary], client_max_size=front.settings.max_body_bytes)
    app.on_response_prepare.append(_sign)
    routes = Routes(front)
    app.router.add_post("/v1/chat/completions", routes.chat_completions)
    app.router.add_get("/v1/models", routes.list_models)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/metrics", routes.metrics)
    return app


class Routes:
    """One method per endpoint."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def chat_completions(self, http: web.Request) -> web.StreamResponse:
        return await Exchange(self._front, http, http[_REQUEST_ID]).run()

    async def list_models(self, http: web.Request) -> web.Response:
        self._front.keys.tenant(http.headers.get("Authorization"))
        return json_response(models(self._front.model, self._front.created))

    async def health(self, _: web.Request) -> web.Response:
        """200 when the model can be served, else 503 with what is missing."""
        missing = self._front.missing()
        body = {
            "status": "unavailable" if missing else "ok",
            "model": self._front.model,
            "missing": missing,
        }
        return json_response(body, status=503 if missing else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._front.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


@web.middleware
async def _boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives every request an id, and every error OpenAI's shape."""
    request_id = request[_REQUEST_ID] = uuid.uuid4().hex
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        try:
            return await handler(request)
        except Rejected as e:
            return problem_response(e.problem)
        except web.HTTPException as e:
            return _http_error(request, e)
        except ConnectionError:
            raise
        except Exception:
            log.exception("handler_crashed", path=request.path)
            return problem_response(internal())


def _http_error(http: web.Request, error: web.HTTPException) -> web.Response:
    if error.status == 404:
        message = f"There is no {http.path} here"
    elif error.status == 405:
        message = f"{http.method} is not allowed for {http.path}"
    else:
        message = error.reason
    response = problem_response(http_problem(error.status, message))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


async def _sign(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "paceline"
    if request_id := http.get(_REQUEST_ID):
        response.headers["x-request-id"] = request_id

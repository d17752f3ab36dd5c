"""The gateway's HTTP surface: routes, and what holds for every response."""

import time
import uuid
from importlib.metadata import version

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from paceline.contracts.errors import PacelineError
from paceline.gateway.answer import models
from paceline.gateway.ask import Ask
from paceline.gateway.batches.service import Batches
from paceline.gateway.dialect import Dialect
from paceline.gateway.dialects import tokens
from paceline.gateway.dialects.anthropic import MESSAGES
from paceline.gateway.dialects.anthropic_request import parse_count
from paceline.gateway.dialects.chat import CHAT
from paceline.gateway.dialects.completions import COMPLETIONS
from paceline.gateway.dialects.responses_store import ResponseStore
from paceline.gateway.dialects.workers_ai import Run
from paceline.gateway.errors import Problem, Rejected, http_problem, internal, problem_of
from paceline.gateway.exchange import METER, Exchange
from paceline.gateway.front import Front
from paceline.gateway.http_json import json_response, problem_response
from paceline.gateway.intake import read_body
from paceline.gateway.metrics import CONTENT_TYPE
from paceline.gateway.openapi import document
from paceline.gateway.routes_responses import ResponseRoutes, StoredDialect
from paceline.gateway.tokenizing import Encoded

log = structlog.get_logger(__name__)

_REQUEST_ID = web.RequestKey("request_id", str)


def build_app(front: Front, batches: Batches) -> web.Application:
    """The application; run it with handler cancellation, which is how a client's leaving is noticed."""
    app = web.Application(middlewares=[_boundary], client_max_size=front.settings.max_body_bytes)
    app.on_response_prepare.append(_sign)
    routes = Routes(front, batches)
    for path, dialect in _DIALECTS.items():
        for base in ("/v1", _WORKERS_AI + "/v1"):
            app.router.add_post(base + path, routes.exchange(dialect))
    for base in ("/v1", _WORKERS_AI + "/v1"):
        app.router.add_post(base + "/responses", routes.responses)
        app.router.add_get(base + "/models", routes.list_models)
    app.router.add_get("/v1/models/{model:.+}", routes.get_model)
    app.router.add_post("/v1/messages", routes.exchange(MESSAGES))
    app.router.add_post("/v1/messages/count_tokens", routes.count_tokens)
    app.router.add_post(_WORKERS_AI + "/run/{model:.+}", routes.run)
    ResponseRoutes(front, routes.stored).add_to(app)
    batches.add_routes(app)
    app.router.add_post("/tokenize", routes.tokenize)
    app.router.add_post("/detokenize", routes.detokenize)
    app.router.add_get("/openapi.json", routes.openapi)
    app.router.add_get("/", routes.root)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/metrics", routes.metrics)
    return app


_WORKERS_AI = "/client/v4/accounts/{account}/ai"
_DIALECTS: dict[str, Dialect] = {"/chat/completions": CHAT, "/completions": COMPLETIONS}


class Routes:
    """One method per endpoint."""

    def __init__(self, front: Front, batches: Batches) -> None:
        self.stored = ResponseStore()
        self._front = front
        self._batches = batches

    def exchange(self, dialect: Dialect) -> Handler:
        """Requests for tokens in one dialect."""

        async def handle(http: web.Request) -> web.StreamResponse:
            return await Exchange(self._front, http, http[_REQUEST_ID], dialect).run()

        return handle

    async def responses(self, http: web.Request) -> web.StreamResponse:
        tenant = self._front.keys.tenant(http.headers)
        dialect = StoredDialect(self.stored, tenant.name)
        return await Exchange(self._front, http, http[_REQUEST_ID], dialect).run()

    async def run(self, http: web.Request) -> web.StreamResponse:
        model = http.match_info["model"]
        if self._batches.runs.wanted(http):
            return await self._batches.runs.run(http, model)
        dialect = Run(model)
        return await Exchange(self._front, http, http[_REQUEST_ID], dialect).run()

    async def count_tokens(self, http: web.Request) -> web.Response:
        body = await self._body(http)
        encoded, _ = await self._encode(await self._front.language().aside(lambda: parse_count(body)))
        return json_response({"input_tokens": len(encoded.tokens)})

    async def list_models(self, http: web.Request) -> web.Response:
        self._front.keys.tenant(http.headers)
        return json_response(models(self._front.model, self._front.created))

    async def get_model(self, http: web.Request) -> web.Response:
        self._front.keys.tenant(http.headers)
        self._front.check_model(http.match_info["model"])
        return json_response(models(self._front.model, self._front.created)["data"][0])

    async def tokenize(self, http: web.Request) -> web.Response:
        body = await self._body(http)
        language = self._front.language()
        encoded, room = await self._encode(await language.aside(lambda: tokens.parse_tokenize(body)))
        pieces = await language.aside(
            lambda: [language.content(token).decode(errors="replace") for token in encoded.tokens]
        )
        return json_response(tokens.tokenized(encoded.tokens, pieces, room))

    async def detokenize(self, http: web.Request) -> web.Response:
        body = await self._body(http)
        language = self._front.language()
        text = await language.aside(
            lambda: language.text(tokens.parse_detokenize(body, vocab=language.tokenizer.vocab))
        )
        return json_response(tokens.detokenized(text))

    async def _encode(self, ask: Ask) -> tuple[Encoded, int]:
        """The one prompt of a request, and what the model has room for."""
        front = self._front
        front.check_model(ask.model)
        room = front.mesh.room(front.model)
        return await front.language().encode(ask.prompts[0], ask, room), room

    async def _body(self, http: web.Request) -> bytes:
        """Of a request that takes no work of the mesh."""
        front, settings = self._front, self._front.settings
        front.keys.tenant(http.headers)
        return await read_body(
            http, front.uploads, limit=settings.max_body_bytes, timeout=settings.body_timeout_s
        )

    async def openapi(self, _: web.Request) -> web.Response:
        return json_response(document(version("paceline"), self._front.model))

    async def root(self, _: web.Request) -> web.Response:
        """Some clients ask for it first, to see whether anybody is there."""
        return json_response({"server": "paceline", "model": self._front.model})

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
    """Gives every request an id, and every error the shape of its API."""
    request_id = request[_REQUEST_ID] = uuid.uuid4().hex
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        try:
            return await handler(request)
        except Rejected as e:
            return _problem(request, e.problem)
        except PacelineError as e:
            return _problem(request, problem_of(e))
        except web.HTTPException as e:
            return _http_error(request, e)
        except ConnectionError:
            raise
        except Exception:
            log.exception("handler_crashed", path=request.path)
            return _problem(request, internal())


def _problem(http: web.Request, problem: Problem) -> web.Response:
    """In the shape of the API that the path belongs to."""
    if http.path.startswith("/v1/messages"):
        return problem_response(problem, MESSAGES.problem(problem, http[_REQUEST_ID]))
    if http.path.startswith("/client/v4/") and "/ai/run/" in http.path:
        return problem_response(problem, Run("").problem(problem, http[_REQUEST_ID]))
    return problem_response(problem)


def _http_error(http: web.Request, error: web.HTTPException) -> web.Response:
    if error.status == 404:
        message = f"There is no {http.path} here"
    elif error.status == 405:
        message = f"{http.method} is not allowed for {http.path}"
    else:
        message = error.reason
    response = _problem(http, http_problem(error.status, message))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


async def _sign(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "paceline"
    if request_id := http.get(_REQUEST_ID):
        response.headers["x-request-id"] = request_id
    if meter := http.get(METER):
        response.headers.update(meter.headers(time.monotonic()))

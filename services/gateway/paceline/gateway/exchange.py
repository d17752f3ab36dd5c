"""One request for tokens, in any dialect, from its first byte to its last."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeVar

import structlog
from aiohttp import web
from opentelemetry import trace

from paceline.contracts.errors import PacelineError
from paceline.gateway import tracing
from paceline.gateway.answer import Head, Usage, total
from paceline.gateway.ask import Ask
from paceline.gateway.dialect import Dialect, Spoken
from paceline.gateway.errors import Problem, Rejected, internal, problem_of, timed_out
from paceline.gateway.eventstream import EventStream
from paceline.gateway.front import Front
from paceline.gateway.generation import Generation, collect
from paceline.gateway.http_json import json_response, problem_response
from paceline.gateway.intake import Choice, make_choices, read_body
from paceline.gateway.limits import Meter
from paceline.gateway.pipelining import cut_off_when_unread
from paceline.gateway.streaming import Streaming
from paceline.gateway.tokenizing import Tokenizing
from paceline.telemetry import traces

log = structlog.get_logger(__name__)

METER = web.RequestKey("meter", Meter)
"""Whose limits a response tells."""

_CLIENT_GONE = 499

T = TypeVar("T")


class Exchange:
    """Takes a request through admission, intake and the mesh, and gives the client exactly one end of it.

    If the client goes away the handler is cancelled, wherever it is; leaving the blocks below gives everything back.
    """

    def __init__(self, front: Front, http: web.Request, request_id: str, dialect: Dialect) -> None:
        self._front = front
        self._http = http
        self._dialect = dialect
        self._stream = EventStream(http)
        self._head = Head(request_id, front.model, int(time.time()))
        self._arrived = monotonic()
        self._queue_s = 0.0
        self._status = _CLIENT_GONE
        self._streaming: Streaming | None = None

    async def run(self) -> web.StreamResponse:
        """The response, whatever happens. Raises only when the client is gone."""
        with traces.tracer().start_as_current_span(
            f"{self._http.method} {self._http.path}",
            context=traces.extract(self._http.headers),
            kind=trace.SpanKind.SERVER,
            attributes={
                "http.request.method": self._http.method,
                "paceline.request_id": self._head.request_id,
            },
        ) as span:
            try:
                return await self._answer_or_problem()
            finally:
                span.set_attribute("http.response.status_code", self._status)
                self._front.metrics.ended(self._status)

    async def _answer_or_problem(self) -> web.StreamResponse:
        try:
            response = await self._answer_in_time()
        except Rejected as e:
            return await self._fail(e.problem)
        except PacelineError as e:
            return await self._fail(problem_of(e))
        except ConnectionError:
            raise
        except Exception:
            log.exception("exchange_crashed")
            return await self._fail(internal())
        self._status = response.status
        return response

    async def _fail(self, problem: Problem) -> web.StreamResponse:
        log.warning("request_failed", status=problem.status, code=problem.code, error=problem.message)
        span = trace.get_current_span()
        span.set_attribute("error.type", problem.code)
        if problem.status >= 500:
            span.set_status(trace.StatusCode.ERROR, problem.message)
        if self._streaming is not None and self._stream.begun:
            response = await self._stream.fail(self._streaming.renderer.error(problem))
        else:
            body = self._dialect.problem(problem, self._head.request_id)
            response = problem_response(problem, body)
        self._status = problem.status
        return response

    async def _answer_in_time(self) -> web.StreamResponse:
        seconds = self._front.settings.request_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(time.time() + seconds)
        except TimeoutError as e:
            raise Rejected(timed_out(seconds)) from e

    async def _answer(self, deadline: float) -> web.StreamResponse:
        front, settings = self._front, self._front.settings
        tenant = front.keys.tenant(self._http.headers)
        meter = front.limits.meter(tenant.name, tenant.quota, monotonic())
        self._http[METER] = meter
        front.language()
        meter.take_request(monotonic())
        front.admission.check()
        body = await read_body(
            self._http, front.uploads, limit=settings.max_body_bytes, timeout=settings.body_timeout_s
        )
        language = front.language()
        with front.admission.enter() as ticket:
            spoken = await language.parse(self._dialect, body)
            ask = spoken.ask
            if ask.refuse_if_busy:
                front.admission.check_idle_place()
            choices = await make_choices(
                front, language, ask, self._http.headers, tenant, self._head.request_id, deadline
            )
            meter.take_prompt(sum(len(choice.job.prompt) for choice in choices if choice.first), monotonic())
            job = choices[0].job
            trace.get_current_span().set_attributes(
                tracing.request_attributes(job.model, job.sampling, stream=ask.stream)
            )
            with cut_off_when_unread(self._http.transport):
                ready = monotonic()
                await front.admission.run(ticket)
                self._queue_s = monotonic() - ready
                generations = [self._generation(language, ask, choice) for choice in choices]
                try:
                    return await (self._streamed if ask.stream else self._whole)(spoken, generations)
                finally:
                    meter.take_answer(sum(g.usage().completion_tokens for g in generations))

    def _generation(self, language: Tokenizing, ask: Ask, choice: Choice) -> Generation:
        return Generation(self._front, language, ask, choice, arrived=self._arrived, queue_s=self._queue_s)

    async def _whole(self, spoken: Spoken, generations: Sequence[Generation]) -> web.StreamResponse:
        answers = await in_order(generations, collect)
        usage = self._outcome(generations, [answer.end.reason for answer in answers])
        return json_response(spoken.whole(self._head, answers, usage))

    async def _streamed(self, spoken: Spoken, generations: Sequence[Generation]) -> web.StreamResponse:
        streaming = self._streaming = Streaming(self._stream, spoken.renderer(self._head))
        reasons = await in_order(generations, streaming.run)
        usage = self._outcome(generations, reasons)
        return await self._stream.end(streaming.renderer.end(usage))

    def _outcome(self, generations: Sequence[Generation], reasons: Sequence[str]) -> Usage:
        """What it cost: counted, traced and logged."""
        usage = self._front.priced(total([generation.usage() for generation in generations]))
        ttft_s = generations[0].ttft_s
        self._front.metrics.answered(usage)
        trace.get_current_span().set_attributes(
            tracing.response_attributes(self._head, reasons, usage, ttft_s)
        )
        log.info(
            "request_answered",
            dialect=self._dialect.name,
            finish_reasons=list(reasons),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached.total,
            completion_tokens=usage.completion_tokens,
            attempts=max(generation.attempts for generation in generations),
            ttft_s=round(ttft_s, 4),
            total_s=round(monotonic() - self._arrived, 4),
        )
        return usage


async def in_order(
    generations: Sequence[Generation], run: Callable[[int, Generation], Awaitable[T]]
) -> list[T]:
    """Run all of them, those behind the first to a prompt once its pages can be reused, and give what they return.

    The first failure ends the others and is raised.
    """
    if len(generations) == 1:
        return [await run(0, generations[0])]
    first = generations[0]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for i, generation in enumerate(generations):
                first = generation if generation.first else first
                tasks.append(group.create_task(_behind(first, i, generation, run)))
    except ExceptionGroup as e:
        raise e.exceptions[0] from e
    return [task.result() for task in tasks]


async def _behind(
    first: Generation, i: int, generation: Generation, run: Callable[[int, Generation], Awaitable[T]]
) -> T:
    if generation is not first:
        await first.begun.wait()
    return await run(i, generation)

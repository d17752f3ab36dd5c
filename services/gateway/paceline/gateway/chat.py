"""One POST /v1/chat/completions, from its first byte to its last."""

import asyncio
import time
from collections.abc import Sequence
from time import monotonic

import structlog
from aiohttp import web
from opentelemetry import trace

from paceline.contracts.errors import PacelineError
from paceline.contracts.messages import FinishReason
from paceline.gateway import sse, tracing
from paceline.gateway.answer import Head, Usage, completion
from paceline.gateway.call import Call, Job, Tap
from paceline.gateway.errors import Problem, Rejected, internal, problem_of, timed_out
from paceline.gateway.eventstream import EventStream
from paceline.gateway.front import Front
from paceline.gateway.intake import make_job, read_body
from paceline.gateway.openai import ChatRequest
from paceline.gateway.pipelining import cut_off_when_unread
from paceline.gateway.responses import json_response, problem_response
from paceline.gateway.text import TextStream
from paceline.telemetry import traces

log = structlog.get_logger(__name__)

_CLIENT_GONE = 499


class Exchange:
    """Takes a request through admission, intake and the mesh, and gives the client exactly one end of it.

    If the client goes away the handler is cancelled, wherever it is; leaving the blocks below gives everything back.
    """

    def __init__(self, front: Front, http: web.Request, request_id: str) -> None:
        self._front = front
        self._http = http
        self._stream = EventStream(http)
        self._head = Head(request_id, front.model, int(time.time()))
        self._arrived = self._last_token = monotonic()
        self._queue_s = 0.0
        self._ttft_s = 0.0
        self._status = _CLIENT_GONE

    async def run(self) -> web.StreamResponse:
        """The response, whatever happens. Raises only when the client is gone."""
        with traces.tracer().start_as_current_span(
            "POST /v1/chat/completions",
            context=traces.extract(self._http.headers),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": "POST", "paceline.request_id": self._head.request_id},
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
            log.exception("chat_crashed")
            return await self._fail(internal())
        self._status = response.status
        return response

    async def _fail(self, problem: Problem) -> web.StreamResponse:
        log.warning("chat_failed", status=problem.status, code=problem.code, error=problem.message)
        span = trace.get_current_span()
        span.set_attribute("error.type", problem.code)
        if problem.status >= 500:
            span.set_status(trace.StatusCode.ERROR, problem.message)
        response = await self._stream.fail(problem) if self._stream.begun else problem_response(problem)
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
        tenant = front.keys.tenant(self._http.headers.get("Authorization"))
        front.language()
        front.admission.check()
        body = await read_body(
            self._http, front.uploads, limit=settings.max_body_bytes, timeout=settings.body_timeout_s
        )
        language = front.language()
        with front.admission.enter() as ticket:
            chat, job = await make_job(
                front, language, self._http.headers, body, tenant, self._head.request_id, deadline
            )
            trace.get_current_span().set_attributes(
                tracing.request_attributes(job.model, job.sampling, stream=bool(chat.stream))
            )
            with cut_off_when_unread(self._http.transport):
                ready = monotonic()
                await front.admission.run(ticket)
                self._queue_s = monotonic() - ready
                text = TextStream(language.tokenizer.token_bytes, chat.stops)
                return await (self._streamed(chat, job, text) if chat.stream else self._whole(job, text))

    async def _whole(self, job: Job, text: TextStream) -> web.StreamResponse:
        shown = []

        def keep(tokens: Sequence[int]) -> bool:
            self._came(tokens)
            shown.append(text.push(tokens))
            return True

        with self._front.mesh.open(job) as call:
            while not text.stopped and (tokens := await self._next(call, text, keep)) is not None:
                shown.append(text.push(tokens))
        shown.append(text.finish())
        reason, usage = self._outcome(call, text)
        return json_response(completion(self._head, "".join(shown), reason, usage))

    async def _streamed(self, chat: ChatRequest, job: Job, text: TextStream) -> web.StreamResponse:
        chunks = sse.Chunks(self._head, include_usage=chat.include_usage)

        def send(tokens: Sequence[int]) -> bool:
            if not self._stream.keeps_up:
                return False
            self._came(tokens)
            if shown := text.push(tokens):
                self._stream.write_now(chunks.content(shown))
            return True

        with self._front.mesh.open(job) as call:
            while not text.stopped and (tokens := await self._next(call, text, send)) is not None:
                events = [] if self._stream.begun else [chunks.role()]
                if shown := text.push(tokens):
                    events.append(chunks.content(shown))
                if not tokens:
                    events.append(sse.KEEP_ALIVE)
                if events:
                    await self._stream.write(b"".join(events))
        rest = text.finish()
        reason, usage = self._outcome(call, text)
        events = [] if self._stream.begun else [chunks.role()]
        if rest:
            events.append(chunks.content(rest))
        events.append(chunks.finish(reason))
        if chat.include_usage:
            events.append(chunks.usage(usage))
        return await self._stream.end(b"".join(events))

    async def _next(self, call: Call, text: TextStream, tap: Tap) -> Sequence[int] | None:
        # A stop string ends the answer at any token, which is not for a tap to do.
        tokens = await call.next_batch(self._front.settings.keep_alive_s, None if text.may_stop else tap)
        if tokens:
            self._came(tokens)
        return tokens

    def _came(self, tokens: Sequence[int]) -> None:
        now = monotonic()
        if self._ttft_s:
            self._front.metrics.itl.observe((now - self._last_token) / len(tokens))
        else:
            self._ttft_s = now - self._arrived
            self._front.metrics.ttft.observe(self._ttft_s)
        self._last_token = now

    def _outcome(self, call: Call, text: TextStream) -> tuple[FinishReason, Usage]:
        """Why the answer ends and what it cost; counted, traced and logged."""
        request = call.request
        reason: FinishReason = "stop" if text.stopped else request.finish_reason or "stop"
        usage = Usage(len(call.job.prompt), text.tokens, self._queue_s, request.started, request.done)
        self._front.metrics.answered(usage)
        trace.get_current_span().set_attributes(
            tracing.response_attributes(self._head, reason, usage, self._ttft_s)
        )
        log.info(
            "chat_answered",
            finish_reason=reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached.total,
            completion_tokens=usage.completion_tokens,
            attempts=request.attempt,
            ttft_s=round(self._ttft_s, 4),
            total_s=round(monotonic() - self._arrived, 4),
        )
        return reason, usage

"""One answer as it is generated: tokens from the mesh to deltas for whoever shows them."""

import asyncio
import math
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from paceline.contracts.errors import InternalError
from paceline.contracts.messages import FinishReason
from paceline.gateway.answer import Usage
from paceline.gateway.ask import Ask
from paceline.gateway.call import Call
from paceline.gateway.deltas import Answer, Delta, End, Text, TokenLogprob
from paceline.gateway.front import Front
from paceline.gateway.intake import Choice
from paceline.gateway.tokenizing import Tokenizing


class Sink(Protocol):
    """Where deltas go."""

    @property
    def ready(self) -> bool:
        """Whether `put` may be used."""

    def put(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        """Take them, without waiting. Must not raise."""

    async def send(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        """Take them, and wait for a client that reads slower than we write."""

    async def keep_alive(self) -> None:
        """There is nothing new."""


class Collected:
    """A `Sink` for an answer that is given whole."""

    ready = True

    def __init__(self) -> None:
        self.answer = Answer()

    def put(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        self.answer.add(deltas)
        self.answer.logprobs += logprobs

    async def send(self, deltas: Sequence[Delta], logprobs: Sequence[TokenLogprob]) -> None:
        self.put(deltas, logprobs)

    async def keep_alive(self) -> None: ...


class Generation:
    """Runs once. `arrived` is when the request came, `queue_s` how long it waited in the gateway."""

    def __init__(
        self, front: Front, language: Tokenizing, ask: Ask, choice: Choice, *, arrived: float, queue_s: float
    ) -> None:
        self.begun = asyncio.Event()
        self.ttft_s = 0.0
        self._front = front
        self._language = language
        self._ask = ask
        self._choice = choice
        self._answering = language.answering(ask, choice.prompt)
        self._arrived = self._last_token = arrived
        self._queue_s = queue_s
        self._call: Call | None = None

    @property
    def first(self) -> bool:
        """Whether it computes its prompt for those that follow."""
        return self._choice.first

    @property
    def attempts(self) -> int:
        return self._call.request.attempt if self._call else 0

    async def run(self, sink: Sink) -> End:
        """Generate to the end, and all of it into `sink`. Raises what ended it otherwise."""
        try:
            return await (self._echo(sink) if self._ask.echo else self._generate(sink))
        finally:
            self.begun.set()

    def usage(self) -> Usage:
        """What it has cost so far. A prompt counts once, however many answers it has."""
        request = self._call.request if self._call else None
        return Usage(
            prompt_tokens=len(self._choice.prompt.tokens) if self.first else 0,
            completion_tokens=self._answering.tokens if self._ask.sampling.max_tokens else 0,
            queue_s=self._queue_s,
            started=request.started if request and self.first else None,
            done=request.done if request else None,
            reasoning_tokens=self._answering.reasoning_tokens,
        )

    async def _generate(self, sink: Sink) -> End:
        answering = self._answering
        patience = self._front.settings.keep_alive_s

        def tap(tokens: Sequence[int]) -> bool:
            if not sink.ready:
                return False
            deltas, logprobs = self._take(call, tokens)
            if deltas or logprobs:
                sink.put(deltas, logprobs)
            return True

        with self._front.mesh.open(self._choice.job) as call:
            self._call = call
            # A stop string ends the answer at any token, which is not for a tap to do.
            offered = None if answering.may_stop else tap
            while not answering.stopped and (tokens := await call.next_batch(patience, offered)) is not None:
                if tokens:
                    await sink.send(*self._take(call, tokens))
                else:
                    await sink.keep_alive()
        if rest := answering.finish():
            await sink.send(rest, ())
        reason: FinishReason = call.request.finish_reason or "stop"
        return answering.end(reason)

    async def _echo(self, sink: Sink) -> End:
        """The prompt goes first, whose log probabilities come with the first token or, if a message was lost, later."""
        collected = Collected()
        end = await self._generate(collected)
        prompt = self._choice.prompt
        text = prompt.text if prompt.text is not None else self._language.text(prompt.tokens)
        await sink.send((Text(text),), self._scored() if self._ask.logprobs is not None else ())
        if self._ask.sampling.max_tokens == 0:
            return End("length")
        await sink.send((Text(collected.answer.text),), collected.answer.logprobs)
        return end

    def _scored(self) -> list[TokenLogprob]:
        """The prompt's tokens; the first follows nothing, for which NaN stands."""
        tokens = self._choice.prompt.tokens
        started = self._call.request.started if self._call else None
        if started is None or len(started.prompt_logprobs) != len(tokens) - 1:
            raise InternalError("the log probabilities of the prompt were lost")
        first = TokenLogprob(self._language.content(tokens[0]), math.nan, ())
        return [first, *self._language.logprobs(tokens[1:], started.prompt_logprobs)]

    def _take(self, call: Call, tokens: Sequence[int]) -> tuple[list[Delta], list[TokenLogprob]]:
        """What tokens that came are for the client."""
        self._came(tokens)
        if self._ask.logprobs is None:
            return self._answering.push(tokens), []
        before = self._answering.tokens
        values = call.request.logprobs[before : before + len(tokens)]
        return self._answering.push_scored(tokens, self._language.logprobs(tokens, values))

    def _came(self, tokens: Sequence[int]) -> None:
        now = monotonic()
        if self.ttft_s:
            self._front.metrics.itl.observe((now - self._last_token) / len(tokens))
        else:
            self.ttft_s = now - self._arrived
            self._front.metrics.ttft.observe(self.ttft_s)
            self.begun.set()
        self._last_token = now


async def collect(_: int, generation: Generation) -> Answer:
    """The whole of an answer, whichever it is of its request."""
    collected = Collected()
    collected.answer.end = await generation.run(collected)
    return collected.answer

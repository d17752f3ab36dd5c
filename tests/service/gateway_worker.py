"""A worker that follows a script, written against the contracts alone.

The script is the answer: output token i of every request is `answer[i]`, whoever computes it, so that whatever a
client gets can be compared with it. Everything else a test may bend: hold a stage, lose a frame, refuse, die.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from paceline.bus.interface import Bus
from paceline.bus.service import MicroService
from paceline.contracts import subjects
from paceline.contracts.codec import encode
from paceline.contracts.errors import PacelineError, WorkerLost
from paceline.contracts.frames import Logprobs, Tokens, encode_frame
from paceline.contracts.messages import (
    Ack,
    Beacon,
    CachedTokens,
    Cancel,
    Confirm,
    Done,
    Failed,
    Generate,
    Load,
    LocalPrefill,
    Message,
    ModelInfo,
    Prefill,
    RemotePrefill,
    Resend,
    Role,
    Started,
    Timings,
    Work,
)
from paceline.runtime.identity import new_identity
from paceline.runtime.tasks import Tasks
from tests.service.gateway_model import EOS, tokens_of

MODEL = ModelInfo(
    name="m", context=4096, fingerprint=b"p" * 32, kv_dtype="float32", page_bytes=1024, engine="scripted"
)


def logprobs_of(token: int, width: int) -> Logprobs:
    """Exact in float32, and different for each token."""
    own = -token / 256
    return Logprobs(own, tuple((token + i, own - i) for i in range(width)))


@dataclass
class Script:
    """What all workers of a mesh do. Events that are set do not hold."""

    answer: list[int] = field(default_factory=lambda: [*tokens_of("Hello, wörld 😀!"), EOS])
    cached: CachedTokens = field(default_factory=CachedTokens)
    prompt: asyncio.Event = field(default_factory=asyncio.Event)
    decode: asyncio.Event = field(default_factory=asyncio.Event)
    hold_at: int = 1 << 30  # decode waits for `decode` before this output token
    lose: set[int] = field(default_factory=set)  # output tokens whose frame is not sent, once
    lose_events: set[str] = field(default_factory=set)  # tags of events that are not sent, once

    def __post_init__(self) -> None:
        self.prompt.set()


class Worker:
    """One worker of either role. `live` are the attempts that it keeps anything for."""

    def __init__(self, bus: Bus, role: Role, name: str, script: Script, peers: "list[Worker]") -> None:
        self.script, self.bus, self.peers = script, bus, peers
        self.identity = new_identity(role, name)
        self.state: Any = "starting"
        self.load = Load()
        self.model = MODEL
        self.received: list[Message] = []
        self.live: dict[str, int] = {}
        self.refuse: PacelineError | None = None  # on dispatch
        self.silent = False  # never answers
        self._published: dict[str, list[Tokens | Started | Done]] = {}
        self._gateways: dict[str, str] = {}
        self._tasks = Tasks()
        self._api = MicroService(bus, self.identity, description="scripted", metadata={}, load=Load)
        self._api.serve(subjects.PREFILL, self._prefill)
        self._api.serve(subjects.GENERATE, self._generate)
        self._api.serve(subjects.CANCEL, self._cancel)
        self._api.serve(subjects.CONFIRM, self._confirm)
        self._api.serve(subjects.RESEND, self._resend)
        self.committed: dict[tuple[str, int], asyncio.Event] = {}

    async def start(self) -> None:
        await self._api.start()
        self._tasks.spawn(self._beat(), name="beacons")
        self.state = "ready"
        await self.beacon()

    async def beacon(self) -> None:
        own = self.identity
        beacon = Beacon(
            role=own.role,
            worker=own.worker,
            incarnation=own.incarnation,
            host="h",
            pid=1,
            state=self.state,
            started=own.started,
            load=self.load,
            model=self.model,
        )
        await self.bus.publish(subjects.beacon(own.role, own.worker), encode(beacon))

    async def kill(self) -> None:
        """Like kill -9: nothing is said and nothing is answered any more."""
        await self._tasks.cancel_all()
        await self._api.close()
        self.live.clear()

    async def leave(self) -> None:
        """Say that it is gone, so that others need not find out."""
        await self.kill()
        self.state = "gone"
        await self.beacon()

    def messages(self, kind: type[Message]) -> list[Any]:
        return [m for m in self.received if isinstance(m, kind)]

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            await self.beacon()

    async def _take(self, message: Prefill | Generate) -> bool:
        """Whether the attempt is new. Raises what the script says."""
        self.received.append(message)
        if self.silent:
            await asyncio.Event().wait()
        if self.refuse:
            raise self.refuse
        work = message.work
        known = self.live.get(work.request_id)
        self.live[work.request_id] = work.attempt
        self._published.setdefault(work.request_id, [])
        self._gateways[work.request_id] = work.gateway
        return known != work.attempt

    async def _prefill(self, message: Prefill) -> Ack:
        if await self._take(message):
            self._tasks.spawn(self._run_prompt(message.work), name="prompt")
        return Ack()

    async def _generate(self, message: Generate) -> Ack:
        if await self._take(message):
            if isinstance(message.source, RemotePrefill):
                job = self._run_remote(message.work)
            else:
                assert isinstance(message.source, LocalPrefill)
                job = self._run_local(message.work)
            self._tasks.spawn(job, name="generate")
        return Ack()

    async def _cancel(self, message: Cancel) -> Ack:
        self.received.append(message)
        self._forget(message.request_id, message.attempt)
        return Ack()

    async def _confirm(self, message: Confirm) -> Ack:
        self.received.append(message)
        self._forget(message.request_id, message.attempt)
        return Ack()

    async def _resend(self, message: Resend) -> Ack:
        self.received.append(message)
        if self.live.get(message.request_id) != message.attempt:
            raise WorkerLost("unknown attempt")
        for item in self._published[message.request_id]:
            if isinstance(item, Tokens):
                skip = max(0, message.index - item.index)
                if item.tokens[skip:]:
                    again = Tokens(
                        item.request_id,
                        item.attempt,
                        item.index + skip,
                        item.tokens[skip:],
                        item.logprobs[skip:],
                    )
                    await self._send(item.request_id, again)
            else:
                await self._send(item.request_id, item)
        return Ack()

    def _forget(self, request_id: str, attempt: int) -> None:
        if self.live.get(request_id, attempt + 1) <= attempt:
            del self.live[request_id]
            del self._published[request_id]

    async def _run_prompt(self, work: Work) -> None:
        base = len(work.output)
        await self._first_token(work, base)
        if base + 1 == len(self.script.answer):
            await self._done(work)
            return
        for worker in self.peers:
            worker.commit(work.request_id, work.attempt)

    async def _run_remote(self, work: Work) -> None:
        await self._commit_event(work.request_id, work.attempt).wait()
        await self._rest(work, len(work.output) + 1)

    async def _run_local(self, work: Work) -> None:
        base = len(work.output)
        await self._first_token(work, base)
        await self._rest(work, base + 1)

    async def _first_token(self, work: Work, base: int) -> None:
        await self.script.prompt.wait()
        scored = work.sampling.prompt_logprobs
        event = Started(
            request_id=work.request_id,
            attempt=work.attempt,
            worker=self.identity.worker,
            cached=self.script.cached,
            timings=Timings(queue=0.25, compute=0.5),
            prompt_logprobs=[] if scored is None else [logprobs_of(t, scored) for t in work.prompt[1:]],
        )
        await self._publish(work, event)
        await self._say(work, base)

    async def _rest(self, work: Work, start: int) -> None:
        for index in range(start, min(len(self.script.answer), work.sampling.max_tokens)):
            if index == self.script.hold_at:
                await self.script.decode.wait()
            await self._say(work, index)
            await asyncio.sleep(0)
        await self._done(work)

    async def _say(self, work: Work, index: int) -> None:
        token, width = self.script.answer[index], work.sampling.logprobs
        logprobs = () if width is None else (logprobs_of(token, width),)
        await self._publish(work, Tokens(work.request_id, work.attempt, index, (token,), logprobs))

    async def _done(self, work: Work) -> None:
        tokens = min(len(self.script.answer), work.sampling.max_tokens)
        done = Done(
            request_id=work.request_id,
            attempt=work.attempt,
            worker=self.identity.worker,
            finish_reason="stop" if tokens == len(self.script.answer) else "length",
            tokens=tokens,
            steps=4,
            compute=1.0,
        )
        await self._publish(work, done)

    async def fail(self, code: str) -> None:
        """End every live attempt with an error."""
        for request_id, attempt in list(self.live.items()):
            name = self.identity.worker
            event = Failed(request_id=request_id, attempt=attempt, worker=name, code=code, message=code)
            await self._send(request_id, event)

    def commit(self, request_id: str, attempt: int) -> None:
        self._commit_event(request_id, attempt).set()

    def _commit_event(self, request_id: str, attempt: int) -> asyncio.Event:
        return self.committed.setdefault((request_id, attempt), asyncio.Event())

    async def _publish(self, work: Work, item: Tokens | Started | Done) -> None:
        if self.live.get(work.request_id) != work.attempt:
            return
        self._published[work.request_id].append(item)
        if isinstance(item, Tokens):
            lost = item.index in self.script.lose
            self.script.lose.discard(item.index)
        else:
            tag = type(item).__name__
            lost = tag in self.script.lose_events
            self.script.lose_events.discard(tag)
        if not lost:
            await self._send(work.request_id, item)

    async def _send(self, request_id: str, item: Tokens | Started | Done | Failed) -> None:
        data = encode_frame([item]) if isinstance(item, Tokens) else encode(item)
        await self.bus.publish(subjects.events(self._gateways[request_id]), data)

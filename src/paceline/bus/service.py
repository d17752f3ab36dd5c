"""A worker's endpoints, and what it tells about itself under $SRV.

nats-py's own responder runs one request of an endpoint at a time and loses those in flight when it stops; this one
gives each a task, and drains.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import structlog

from paceline.bus import micro
from paceline.bus.endpoint import ServedEndpoint
from paceline.bus.identity import Identity
from paceline.bus.interface import Bus, Delivery, Handler, Subscription
from paceline.contracts.codec import encode
from paceline.contracts.messages import Load
from paceline.contracts.subjects import Endpoint

log = structlog.get_logger(__name__)

Q = TypeVar("Q")
R = TypeVar("R", bound=msgspec.Struct)

State: TypeAlias = Literal["starting", "ready", "draining", "gone"]


class MicroService:
    """Answers requests to one worker, each in a task of its own.

    `state` and `metadata` belong to the owner, who may change both at any time; $SRV shows them.
    """

    def __init__(
        self,
        bus: Bus,
        identity: Identity,
        *,
        description: str,
        metadata: dict[str, str],
        load: Callable[[], Load],
    ) -> None:
        self.state: State = "starting"
        self.metadata = metadata
        self._bus = bus
        self._identity = identity
        self._description = description
        self._load = load
        self._served: list[ServedEndpoint] = []
        self._endpoints: list[Subscription] = []
        self._control: list[Subscription] = []
        self._running: set[asyncio.Task[None]] = set()
        self._started = False

    def serve(self, endpoint: Endpoint[Q, R], handler: Callable[[Q], Awaitable[R]]) -> None:
        """Answer requests to `endpoint` with what `handler` returns, or with the `PacelineError` that it raises.

        Comes before `start`. Handlers run concurrently. An empty payload stands for a message of defaults.
        """
        if self._started:
            raise RuntimeError(f"serve({endpoint.verb}) after start()")
        self._served.append(ServedEndpoint(self._bus, self._identity, endpoint, handler))

    async def start(self) -> None:
        """Answer from now on."""
        self._started = True
        for served in self._served:
            self._endpoints.append(await self._bus.subscribe(served.subject, self._in_task(served.answer)))
        for verb, reply in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            handler = self._in_task(self._describe(reply))
            for address in ("", f".{self._identity.role}", f".{self._identity.role}.{self._identity.worker}"):
                self._control.append(await self._bus.subscribe(f"$SRV.{verb}{address}", handler))

    async def drain(self) -> None:
        """Take no more requests and wait for those that run. $SRV is answered until `close`."""
        endpoints, self._endpoints = self._endpoints, []
        await asyncio.gather(*(subscription.drain() for subscription in endpoints))
        while self._running:
            await asyncio.wait(self._running)

    async def close(self) -> None:
        """Stop. Requests that still run are cancelled, and their callers told `Unavailable`."""
        await _unsubscribe(self._endpoints)
        await _unsubscribe(self._control)
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.wait(self._running)

    def _in_task(self, answer: Callable[[Delivery], Coroutine[Any, Any, None]]) -> Handler:
        def handle(delivery: Delivery) -> None:
            task = asyncio.create_task(answer(delivery), name=delivery.subject)
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        return handle

    def _describe(
        self, reply: Callable[[], msgspec.Struct]
    ) -> Callable[[Delivery], Coroutine[Any, Any, None]]:
        async def answer(delivery: Delivery) -> None:
            try:
                await self._bus.publish(delivery.reply, encode(reply()))
            except Exception:
                log.exception("description_failed", subject=delivery.subject)

        return answer

    def _ping(self) -> micro.Ping:
        return micro.Ping(**self._common())

    def _info(self) -> micro.Info:
        endpoints = [
            micro.EndpointInfo(
                name=s.endpoint.verb, subject=s.subject, metadata={"description": s.endpoint.description}
            )
            for s in self._served
        ]
        return micro.Info(**self._common(), description=self._description, endpoints=endpoints)

    def _stats(self) -> micro.Stats:
        data = {"state": self.state, **msgspec.structs.asdict(self._load())}
        endpoints = [s.counters.stats(s.endpoint.verb, s.subject, data) for s in self._served]
        return micro.Stats(**self._common(), started=micro.started(self._identity), endpoints=endpoints)

    def _common(self) -> dict[str, Any]:
        own = self._identity
        metadata = {**self.metadata, "incarnation": own.incarnation, "host": own.host, "pid": str(own.pid)}
        return {"name": own.role, "id": own.worker, "version": micro.VERSION, "metadata": metadata}


async def _unsubscribe(subscriptions: list[Subscription]) -> None:
    while subscriptions:
        await subscriptions.pop().unsubscribe()

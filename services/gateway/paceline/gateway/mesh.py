"""The gateway's requests in the mesh: one subscription hears all their workers, one watchdog looks after them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import structlog

from paceline.bus import rpc
from paceline.bus.interface import Delivery, Subscription
from paceline.contracts import frames, subjects
from paceline.contracts.errors import PacelineError, ProtocolError, Unavailable, WorkerLost
from paceline.contracts.messages import Beacon, Failed, Resend, Role
from paceline.gateway.call import Call, Job
from paceline.gateway.dispatch import Dispatcher, Policy
from paceline.gateway.endings import Endings
from paceline.gateway.metrics import Metrics
from paceline.gateway.request import Ask, Request
from paceline.gateway.reservations import Reservations
from paceline.runtime.context import Context
from paceline.runtime.tasks import Tasks

log = structlog.get_logger(__name__)

_TICK_S = 0.25
# A worker that nobody reaches may be reconnecting to the bus, a moment later than we did.
_ASK_AGAIN_S = 0.5
_SETTLE_S = 1.0


class Mesh:
    """Opens calls and keeps them going until they are over."""

    def __init__(self, context: Context, metrics: Metrics, policy: Policy) -> None:
        identity = context.identity
        # Names this life of the gateway, so that frames for an earlier one never arrive.
        gateway = f"{identity.worker}-{identity.incarnation}"
        self._bus = context.bus
        self._roster = context.roster
        self._metrics = metrics
        self._events = subjects.events(gateway)
        self._reservations = Reservations()
        self._endings = Endings(context.bus, context.roster, self._reservations)
        self._dispatcher = Dispatcher(
            context.bus, context.roster, self._reservations, self._endings, gateway=gateway, policy=policy
        )
        self._calls: dict[str, Call] = {}
        self._ended: PacelineError | None = None
        self._asks = Tasks()
        self._subscription: Subscription | None = None
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def reserved(self) -> int:
        """Reservations on workers; zero when idle."""
        return len(self._reservations)

    @property
    def tasks(self) -> int:
        """Messages to workers that were not answered yet; zero when idle."""
        return len(self._asks) + len(self._endings)

    def room(self, model: str) -> int:
        """Positions that a sequence may have. Raises `Unavailable` while the model cannot be served."""
        return self._dispatcher.room(model)

    async def start(self) -> None:
        self._subscription = await self._bus.subscribe(self._events, self._on_delivery)
        self._roster.on_lost(self._on_worker_lost)
        self._watchdog = asyncio.create_task(self._watch(), name="watchdog")

    def end_all(self, error: PacelineError) -> None:
        """End every open call, and each that is opened from now on, with `error`."""
        self._ended = error
        for call in self._calls.values():
            call.request.end(error)
            call.notify()

    async def close(self) -> None:
        """Stop, once no call is open. Workers get a moment to answer that they let go."""
        if self._watchdog:
            self._watchdog.cancel()
            await asyncio.wait([self._watchdog])
        await self._asks.cancel_all()
        await self._endings.settle(_SETTLE_S)
        if self._subscription:
            await self._subscription.unsubscribe()

    @contextmanager
    def open(self, job: Job) -> Iterator[Call]:
        """A call for the length of the block. Whatever ends the block, no worker keeps anything of it.

        Raises the error of `end_all` after that.
        """
        if self._ended:
            raise self._ended
        request = Request(max_tokens=job.sampling.max_tokens, stop_ids=job.stop_ids)
        call = Call(job, request, self._dispatcher.dispatch)
        self._calls[job.request_id] = call
        try:
            yield call
        finally:
            del self._calls[job.request_id]
            self._metrics.failovers.inc(request.attempt - 1)
            if request.finish_reason and request.done:
                self._endings.confirm(call)
            else:
                self._endings.cancel(call)

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            if frames.is_frame(delivery.data):
                for entry in frames.decode_frame(delivery.data):
                    if call := self._calls.get(entry.request_id):
                        self._heard(call, call.request.on_tokens(entry, monotonic()))
                return
            event = subjects.decode_event(delivery.data)
        except ProtocolError as e:
            log.warning("event_unreadable", error=e.message)
            return
        if call := self._calls.get(event.request_id):
            if isinstance(event, Failed) and event.attempt == call.request.attempt:
                log.warning(
                    "attempt_failed",
                    **_names(call),
                    peer=event.worker,
                    code=event.code,
                    error=event.message,
                )
                self._avoid(call, event)
            self._heard(call, call.request.on_event(event, monotonic()))

    def _heard(self, call: Call, asks: list[Ask]) -> None:
        if call.request.prompt_done:
            self._endings.prompt_done(call)
        self._send(call, asks)
        call.notify()

    def _on_worker_lost(self, beacon: Beacon) -> None:
        for call in self._calls.values():
            ours = call.legs and call.legs.beacon(beacon.role)
            if ours and (ours.worker, ours.incarnation) == (beacon.worker, beacon.incarnation):
                self._lose(call, beacon.role, beacon.worker)

    def _lose(self, call: Call, role: Role, worker: str) -> None:
        call.avoid.add((role, worker))
        call.request.on_lost(role, worker)
        call.notify()
        log.info(
            "request_lost_worker", **_names(call), peer_role=role, peer=worker, goes_on=call.request.running
        )

    def _avoid(self, call: Call, failed: Failed) -> None:
        """Avoid who is to blame: not a decode worker that tells of the loss of its prefill worker, but that one, which
        seems alive until its beacons are missed."""
        if (legs := call.legs) is None:
            return
        blamed = next((r for r in legs.reservations if r.beacon.worker == failed.worker), None)
        if blamed is legs.decode and legs.prefill and failed.code == WorkerLost.code:
            blamed = legs.prefill
        if blamed:
            call.avoid.add((blamed.beacon.role, blamed.beacon.worker))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            if self._roster.deaf:
                continue  # silence is nobody's fault
            now = monotonic()
            for call in self._calls.values():
                self._send(call, call.request.tick(now))

    def _send(self, call: Call, asks: list[Ask]) -> None:
        for ask in asks:
            self._metrics.resends.inc()
            self._asks.spawn(self._ask(call, ask), name=f"resend {call.job.request_id}")

    async def _ask(self, call: Call, ask: Ask) -> None:
        """Ask for a resend; a worker that refuses, or cannot be reached twice though others are heard, is lost to this
        request."""
        began = monotonic()
        message = Resend(request_id=call.job.request_id, attempt=ask.attempt, index=ask.index)
        for again in (True, False):
            try:
                await rpc.call(self._bus, subjects.RESEND, ask.role, ask.worker, message)
            except Unavailable:
                if again:
                    await asyncio.sleep(_ASK_AGAIN_S)
            except PacelineError:
                break
            else:
                return
        else:
            if self._roster.deaf_since(began):
                return  # the watchdog asks again
        if call.request.attempt == ask.attempt:
            self._lose(call, ask.role, ask.worker)


def _names(call: Call) -> dict[str, object]:
    return {"request_id": call.job.request_id, "attempt": call.request.attempt}

"""Hands one attempt at a request to the workers that the router chose."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import structlog

from paceline.bus import rpc
from paceline.bus.interface import Bus
from paceline.contracts import subjects
from paceline.contracts.errors import Busy, PacelineError, Unavailable
from paceline.contracts.hashing import pages_for
from paceline.contracts.messages import Beacon, Generate, KvSource, LocalPrefill, Prefill, RemotePrefill, Role
from paceline.gateway.call import Call, Legs
from paceline.gateway.endings import Endings
from paceline.gateway.reservations import Reservations
from paceline.gateway.router import Decision, Snapshot, is_ready, room, route
from paceline.runtime.roster import Roster
from paceline.telemetry import traces

log = structlog.get_logger(__name__)

ACK_S = 1.0
_LOOK_AGAIN_S = 0.1
_FIRST_PAUSE_S = 0.1


@dataclass(frozen=True)
class Policy:
    """`handoff_min_tokens`: shorter prompts are computed by decode. `failover_wait_s`: how long a request that already
    ran once waits for a worker to come back, and any request for a bus that is silent."""

    handoff_min_tokens: int
    failover_wait_s: float


class Dispatcher:
    """Routes, reserves and dispatches for one gateway, which workers know as `gateway`."""

    def __init__(
        self,
        bus: Bus,
        roster: Roster,
        reservations: Reservations,
        endings: Endings,
        *,
        gateway: str,
        policy: Policy,
    ) -> None:
        self._bus = bus
        self._roster = roster
        self._reservations = reservations
        self._endings = endings
        self._gateway = gateway
        self._policy = policy

    def room(self, model: str) -> int:
        """Positions that a sequence may have on the largest worker. Raises `Unavailable` when no worker is ready."""
        rooms = [room(b) for b in self._roster.alive("decode") if is_ready(b, model)]
        if not rooms:
            raise Unavailable(f"no decode worker serves {model!r} now")
        return max(rooms)

    async def dispatch(self, call: Call) -> None:
        """Begin the next attempt. Afterwards it runs, or `call.request` says what came of it.

        Raises what the router raises when there is nobody to dispatch to.
        """
        self._endings.cancel(call)
        request = call.request
        decision = await self._decide(call)
        legs = call.legs = self._reserve(call, decision)
        request.begin(
            decision.prefill.worker if decision.prefill else None, decision.decode.worker, monotonic()
        )
        began = monotonic()
        with traces.tracer().start_as_current_span(
            "dispatch",
            attributes={
                "paceline.attempt": legs.attempt,
                "paceline.prefill": decision.prefill.worker if decision.prefill else "",
                "paceline.decode": decision.decode.worker,
            },
        ):
            errors = await self._send(call, decision)
        if errors and self._roster.deaf_since(began):
            # They may have taken it, and if not they will say so when they are asked to send again.
            errors = {who: e for who, e in errors.items() if not isinstance(e, Unavailable)}
            await self._hear()
        if errors and request.running and request.attempt == legs.attempt:
            call.avoid.update(errors)
            error = _worst(list(errors.values()))
            log.warning("dispatch_failed", attempt=legs.attempt, error=error.message, code=error.code)
            call.refusal = error
            request.give_up(error)

    async def _decide(self, call: Call) -> Decision:
        """Route. Workers that failed before get a pause when there are no others; if they are busy, a client that got
        nothing yet is told so, because it can wait better than we can. Raises what the router raises, and `Busy`."""
        decision = await self._route(call)
        chosen = {("decode", decision.decode.worker)}
        if decision.prefill:
            chosen.add(("prefill", decision.prefill.worker))
        if chosen & call.avoid:
            if isinstance(call.refusal, Busy) and not call.begun:
                raise call.refusal
            await asyncio.sleep(_FIRST_PAUSE_S * 4.0 ** (call.request.attempt - 2))
            decision = await self._route(call)
        return decision

    async def _hear(self) -> None:
        """Wait while nothing comes from the bus. Raises `Unavailable` when that lasts too long."""
        patience = monotonic() + self._policy.failover_wait_s
        while self._roster.deaf:
            if monotonic() >= patience:
                raise Unavailable("the mesh does not answer")
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _route(self, call: Call) -> Decision:
        if self._bus.connected:
            await self._hear()
        patience = monotonic() + (self._policy.failover_wait_s if call.request.attempt > 1 else 0.0)
        while True:
            try:
                return self._route_once(call)
            except Unavailable:
                if monotonic() >= patience:
                    raise
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _route_once(self, call: Call) -> Decision:
        if not self._bus.connected:
            raise Unavailable("the gateway is disconnected from the mesh")
        minimum = self._policy.handoff_min_tokens
        with traces.tracer().start_as_current_span("route"):
            return route(self._snapshot(), call.prompt(), handoff_min_tokens=minimum)

    def _snapshot(self) -> Snapshot:
        prefill, decode = self._roster.alive("prefill"), self._roster.alive("decode")
        pending = {(b.role, b.worker): self._reservations.pending(b) for b in (*prefill, *decode)}
        return Snapshot(prefill, decode, pending)

    def _reserve(self, call: Call, decision: Decision) -> Legs:
        tokens = call.prompt().tokens
        pages = pages_for(tokens + 1)
        if decision.prefill is None:
            decode = self._reservations.take(decision.decode, tokens=tokens, pages=pages)
            return Legs(call.request.attempt, None, decode)
        return Legs(
            call.request.attempt,
            self._reservations.take(decision.prefill, tokens=tokens, pages=pages),
            self._reservations.take(decision.decode, tokens=0, pages=pages),
        )

    async def _send(self, call: Call, decision: Decision) -> dict[tuple[Role, str], PacelineError]:
        """Dispatch to all workers at once; the errors of those that did not take it."""
        work = call.work(self._gateway)
        prefill, decode = decision.prefill, decision.decode
        source: KvSource = LocalPrefill()
        workers, sends = [decode], []
        if prefill:
            transfer_id = secrets.token_hex(16)
            source = RemotePrefill(
                worker=prefill.worker, incarnation=prefill.incarnation, transfer_id=transfer_id
            )
        generate = Generate(work=work, source=source, draft=call.job.draft)
        sends.append(rpc.call(self._bus, subjects.GENERATE, "decode", decode.worker, generate, timeout=ACK_S))
        if prefill:
            workers.append(prefill)
            message = Prefill(work=work, transfer_id=transfer_id)
            sends.append(
                rpc.call(self._bus, subjects.PREFILL, "prefill", prefill.worker, message, timeout=ACK_S)
            )
        results = await asyncio.gather(*sends, return_exceptions=True)
        return _errors(workers, results)


def _errors(workers: list[Beacon], results: Sequence[object]) -> dict[tuple[Role, str], PacelineError]:
    errors: dict[tuple[Role, str], PacelineError] = {}
    for beacon, result in zip(workers, results, strict=True):
        if isinstance(result, PacelineError):
            errors[beacon.role, beacon.worker] = result
        elif isinstance(result, BaseException):
            raise result
    return errors


def _worst(errors: list[PacelineError]) -> PacelineError:
    """The one that decides: what no worker would take, then a full queue, then anything else."""
    return min(errors, key=lambda e: (e.retryable, not isinstance(e, Busy)))

"""Who is alive, told from beacons.

A worker is lost when its beacons stay away, when another incarnation of it beats, or when it says that it is gone.
Silence counts only while we would have heard: if our own connection was down or our own loop stood still, nobody else
is to blame, and every clock starts again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import structlog

from paceline.bus.interface import Bus, Delivery, Subscription
from paceline.contracts import subjects
from paceline.contracts.errors import ProtocolError, Unavailable
from paceline.contracts.messages import Beacon, Role
from paceline.runtime.tasks import Tasks

log = structlog.get_logger(__name__)

LOST_S = 3.0
_TICK_S = 0.25
_STALL_S = 1.0
# Beacons come twice a second, our own among them.
DEAF_S = 0.9
# Nobody listens there, so a server that lives says so at once.
_PROBE = "paceline.nobody"
_PROBE_S = 0.5
_PROBE_AFTER = 2 / 3


@dataclass
class _Life:
    beacon: Beacon
    heard: float


class Hearing:
    """When the bus was heard. If nothing came for more than `DEAF_S`, it was the bus or we ourselves, and no worker.

    Times are in seconds of any steady clock."""

    def __init__(self) -> None:
        self._last = self._restored = float("-inf")

    def heard(self, now: float) -> None:
        """Something came from the bus."""
        if self.quiet(now) > DEAF_S:
            self._restored = now
        self._last = now

    def quiet(self, now: float) -> float:
        """Seconds since something came."""
        return now - self._last

    def deaf_since(self, start: float, now: float) -> bool:
        """Whether there was a time after `start` in which a message to us could have been lost or late."""
        return self.quiet(now) > DEAF_S or self._restored > start


class Sightings:
    """The last beacon of every worker and when it came; times are in seconds of any steady clock."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, str], _Life] = {}
        self._ticked: float | None = None

    def observe(self, beacon: Beacon, now: float) -> Beacon | None:
        """Take a beacon in. Returns the last beacon of the life that it ends, if it ends one."""
        key = (beacon.role, beacon.worker)
        known = self._lives.get(key)
        if known and known.beacon.incarnation != beacon.incarnation and beacon.started < known.beacon.started:
            return None
        if beacon.state == "gone":
            self._lives.pop(key, None)
            return known.beacon if known else None
        self._lives[key] = _Life(beacon, now)
        return known.beacon if known and known.beacon.incarnation != beacon.incarnation else None

    def expire(self, now: float, *, deaf: bool = False) -> list[Beacon]:
        """Forget the workers that were silent for longer than `LOST_S` and return their last beacons.

        Call it every `_TICK_S`. A longer pause than `_STALL_S` between two calls, or `deaf` (the bus was silent),
        means that we could not hear: then nobody is lost and all clocks restart.
        """
        stalled = self._ticked is not None and now - self._ticked > _STALL_S
        self._ticked = now
        if deaf or stalled:
            for life in self._lives.values():
                life.heard = now
            return []
        lost = [key for key, life in self._lives.items() if now - life.heard > LOST_S]
        return [self._lives.pop(key).beacon for key in lost]

    def alive(self, role: Role) -> list[Beacon]:
        """The workers of `role` that are ready or draining, by id."""
        beacons = [life.beacon for (r, _), life in sorted(self._lives.items()) if r == role]
        return [b for b in beacons if b.state in ("ready", "draining")]

    def get(self, role: Role, worker: str) -> Beacon | None:
        """The last beacon of a worker that is not lost, in any state."""
        life = self._lives.get((role, worker))
        return life.beacon if life else None


class Roster:
    """`Sightings` kept up to date from the bus."""

    def __init__(self) -> None:
        self._sightings = Sightings()
        self._hearing = Hearing()
        self._callbacks: list[Callable[[Beacon], None]] = []
        self._tasks = Tasks()
        self._subscription: Subscription | None = None

    async def start(self, bus: Bus) -> None:
        """Listen, and have everyone who is here say so."""
        self._subscription = await bus.subscribe(subjects.beacon("*", "*"), self._hear)
        await bus.publish(subjects.HELLO, b"")
        self._hearing.heard(monotonic())
        self._tasks.spawn(self._watch(bus), name="roster")

    def alive(self, role: Role) -> list[Beacon]:
        """The workers of `role` that are ready or draining, by id."""
        return self._sightings.alive(role)

    def get(self, role: Role, worker: str) -> Beacon | None:
        """The last beacon of a worker that is not lost, in any state."""
        return self._sightings.get(role, worker)

    @property
    def deaf(self) -> bool:
        """Nothing comes from the bus at all: its server is away or hangs, or our own loop stood still."""
        return self.deaf_since(monotonic())

    def deaf_since(self, start: float) -> bool:
        """Whether `deaf` held at any time since `start`, of `time.monotonic`: what was not answered since then may
        be nobody's fault."""
        return self._hearing.deaf_since(start, monotonic())

    def on_lost(self, callback: Callable[[Beacon], None]) -> None:
        """Call `callback` with the last beacon of each life that ends, once. Someone who falls silent, is lost and
        beats again with the same incarnation begins another life."""
        self._callbacks.append(callback)

    async def close(self) -> None:
        """Stop listening."""
        if self._subscription:
            await self._subscription.unsubscribe()
        await self._tasks.cancel_all()

    def _hear(self, delivery: Delivery) -> None:
        self._hearing.heard(monotonic())
        try:
            beacon = subjects.decode_beacon(delivery.data)
        except ProtocolError as e:
            log.warning("beacon_unreadable", subject=delivery.subject, error=e.message)
            return
        if ended := self._sightings.observe(beacon, monotonic()):
            if beacon.state == "gone":
                log.info("worker_left", peer_role=beacon.role, peer=beacon.worker)
            else:
                log.warning("worker_restarted", peer_role=beacon.role, peer=beacon.worker)
            self._tell(ended)

    async def _watch(self, bus: Bus) -> None:
        before = monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            if self._hearing.quiet(monotonic()) > DEAF_S * _PROBE_AFTER and await _answers(bus):
                self._hearing.heard(monotonic())
            before, deaf = monotonic(), self.deaf_since(before)
            for beacon in self._sightings.expire(before, deaf=deaf):
                log.warning("worker_silent", peer_role=beacon.role, peer=beacon.worker)
                self._tell(beacon)

    def _tell(self, beacon: Beacon) -> None:
        for callback in self._callbacks:
            try:
                callback(beacon)
            except Exception:
                log.exception("lost_callback_failed", peer_role=beacon.role, peer=beacon.worker)


async def _answers(bus: Bus) -> bool:
    """Whether the server lives: a connection that died without a word looks alive for seconds."""
    try:
        await bus.request(_PROBE, b"", timeout=_PROBE_S)
    except Unavailable:
        return bus.connected
    except TimeoutError:
        return False
    return True

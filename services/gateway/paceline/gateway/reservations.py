"""What this gateway has sent to workers and their beacons may not show yet, so that requests of the same half second
spread out. Pure bookkeeping."""

from dataclasses import dataclass

from paceline.contracts.messages import Beacon


@dataclass(frozen=True, slots=True)
class Pending:
    """Requests on one worker, the tokens that it has to compute for them and the pages that they need: `old` ones were
    sent before its newest beacon, which should count them, `new` ones since."""

    old_requests: int = 0
    old_tokens: int = 0
    new_requests: int = 0
    new_tokens: int = 0
    new_pages: int = 0


NOTHING = Pending()


@dataclass(eq=False, slots=True)
class Reservation:
    """A request's share of one worker from the moment of the decision on."""

    beacon: Beacon
    tokens: int
    pages: int

    def computed(self) -> None:
        """The prompt is done: the worker now holds the request, but has no tokens queued for it."""
        self.tokens = 0


class Reservations:
    """All reservations of one gateway; `len` is zero when idle."""

    def __init__(self) -> None:
        self._taken: set[Reservation] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, beacon: Beacon, *, tokens: int, pages: int) -> Reservation:
        """Reserve on the worker that sent `beacon`, from which the decision was made."""
        reservation = Reservation(beacon, tokens, pages)
        self._taken.add(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give back, once or more often."""
        self._taken.discard(reservation)

    def pending(self, beacon: Beacon) -> Pending:
        """What is reserved on the worker that sent `beacon`, its newest one."""
        old_requests = old_tokens = new_requests = new_tokens = new_pages = 0
        for r in self._taken:
            if r.beacon is beacon:
                new_requests += 1
                new_tokens += r.tokens
                new_pages += r.pages
            elif _same_life(r.beacon, beacon):
                old_requests += 1
                old_tokens += r.tokens
        return Pending(old_requests, old_tokens, new_requests, new_tokens, new_pages)


def _same_life(a: Beacon, b: Beacon) -> bool:
    return (a.role, a.worker, a.incarnation) == (b.role, b.worker, b.incarnation)

"""When a child that died is started again. Pure: the supervisor brings the clock and the processes."""

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 0.2
LONGEST_S: Final = 10.0
STEADY_S: Final = 30.0
STARTS: Final = 8


@dataclass
class Restarts:
    """Exponential backoff for one child.

    The delay doubles with each death and is forgotten by a life of `STEADY_S` seconds. `STARTS` lives in a row that
    ended before the child was ready mean that it never will be.
    """

    count: int = 0
    _deaths: int = 0
    _failed_starts: int = 0

    def after(self, lived_s: float, *, was_ready: bool) -> float | None:
        """Seconds to wait before the next start, or None to give the child up."""
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        if self._failed_starts >= STARTS:
            return None
        self._deaths = 1 if lived_s >= STEADY_S else self._deaths + 1
        self.count += 1
        return min(FIRST_S * 2.0 ** (self._deaths - 1), LONGEST_S)

"""One request as the events of the mesh tell it: a pure state machine that merges what its workers publish.

Output tokens are numbered from 0 over all attempts. An attempt that begins with `base` tokens merged owes:

    with a prefill worker    Started and token `base` from prefill, the tokens behind it and Done from decode
    without                  everything from decode

(If token `base` ends the answer, prefill sends Done as well.) Messages may be lost, repeated, late or out of order
between workers. What is missing is asked for again at once when a later token shows the gap, else after
`SILENCE_S` without progress. When a worker that still owes something is lost, the attempt is over and the next begins
behind the tokens that are merged: whoever reads `tokens` sees no seam.
"""

from dataclasses import dataclass
from itertools import zip_longest

from paceline.contracts.errors import Cancelled, PacelineError, WorkerLost, from_code
from paceline.contracts.frames import Logprobs, Tokens
from paceline.contracts.messages import Done, Event, Failed, FinishReason, Role, Started

MAX_ATTEMPTS = 4
SILENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Have `worker` publish again what it has from token `index` on."""

    role: Role
    worker: str
    attempt: int
    index: int


class Request:
    """State of one request. Times are in seconds of any steady clock.

    Exactly one of these holds: an attempt runs (`running`), the next one has to be dispatched, or the request is
    `over`, with a `finish_reason` or an `error`.
    """

    def __init__(self, *, max_tokens: int, stop_ids: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []  # of `tokens`, where they were asked for
        self.attempt = 1
        self.base = 0
        self.started: Started | None = None
        self.done: Done | None = None
        self.finish_reason: FinishReason | None = None
        self.error: PacelineError | None = None
        self.running = False
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids
        self._prefill: str | None = None
        self._decode = ""
        self._ahead: dict[int, tuple[int, Logprobs | None]] = {}
        self._asked = -1
        self._decoding = False
        self._progress = 0.0
        self._gone: set[Role] = set()

    @property
    def over(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def prompt_done(self) -> bool:
        """The running attempt's prompt was computed: its first token is here."""
        return len(self.tokens) > self.base

    def begin(self, prefill: str | None, decode: str, now: float) -> None:
        """The attempt numbered `attempt` is being dispatched to these workers."""
        self.base = len(self.tokens)
        self.running = True
        self.done = None
        self._prefill, self._decode = prefill, decode
        self._ahead.clear()
        self._gone.clear()
        self._asked = -1
        self._decoding = False
        self._progress = now

    def give_up(self, error: PacelineError) -> None:
        """The attempt cannot go on: prepare the next one if that may help, else the request is over."""
        if self.over:
            return
        self.running = False
        if self._is_complete_by_itself():
            return
        if isinstance(error, Cancelled):
            # Nobody who talks to us cancelled it: one worker gave up on the other.
            error = WorkerLost(error.message)
        if not error.retryable or self.attempt >= MAX_ATTEMPTS:
            self.error = error
        else:
            self.attempt += 1

    def end(self, error: PacelineError) -> None:
        """The request is over, whatever its attempt does."""
        if not self.over:
            self.running = False
            self.error = error

    def on_tokens(self, entry: Tokens, now: float) -> list[Ask]:
        """Merge tokens of a frame. Returns what has to be asked for because of a gap."""
        if not self._is_current(entry.attempt):
            return []
        before = len(self.tokens)
        fresh = before - entry.index
        if fresh >= 0:
            self.tokens.extend(entry.tokens[fresh:])
            if entry.logprobs:
                self.logprobs.extend(entry.logprobs[fresh:])
        else:
            self._ahead.update(enumerate(zip_longest(entry.tokens, entry.logprobs), entry.index))
        if self._ahead:
            self._join_ahead()
        self._decoding = self._decoding or entry.index > self.base
        return self._after(now, progress=len(self.tokens) > before)

    def on_event(self, event: Event, now: float) -> list[Ask]:
        """Take a JSON event in. Returns what has to be asked for because of a gap."""
        if not self._is_current(event.attempt):
            return []
        match event:
            case Started():
                progress = self.started is None
                self.started = self.started or event
            case Done():
                progress = self.done is None
                self.done = self.done or event
            case Failed():
                self.give_up(from_code(event.code, event.message))
                return []
        return self._after(now, progress=progress)

    def on_lost(self, role: Role, worker: str) -> None:
        """The worker died or does not know the attempt: give up if it still owes something."""
        if not self.running or worker != (self._prefill if role == "prefill" else self._decode):
            return
        self._gone.add(role)
        if self._needs(role):
            self.give_up(WorkerLost(f"{role} worker {worker} was lost"))
        else:
            self._finish_if_complete()

    def tick(self, now: float) -> list[Ask]:
        """Ask again after `SILENCE_S` without progress, and once more after each further one."""
        if not self.running or now - self._progress < SILENCE_S:
            return []
        self._progress = now
        asks = self._ask_decode() if "decode" not in self._gone else []
        # Prefill's first token may have been the last, and its Done lost.
        if self._prefill_owes() or self._needs("prefill"):
            asks = self._ask_prefill() + asks
        return asks

    def _is_current(self, attempt: int) -> bool:
        return self.running and attempt == self.attempt

    def _after(self, now: float, *, progress: bool) -> list[Ask]:
        if progress:
            self._progress = now
        self._finish_if_complete()
        missing = len(self.tokens)
        if self.over or not self._shows_gap() or self._asked == missing:
            return []
        self._asked = missing
        return self._ask_prefill() if self._prefill_owes() else self._ask_decode()

    def _join_ahead(self) -> None:
        """Append what was waiting for the tokens before it, and drop what came otherwise meanwhile."""
        while (next_one := self._ahead.pop(len(self.tokens), None)) is not None:
            token, logprobs = next_one
            self.tokens.append(token)
            if logprobs is not None:
                self.logprobs.append(logprobs)
        for index in [i for i in self._ahead if i < len(self.tokens)]:
            del self._ahead[index]

    def _shows_gap(self) -> bool:
        """Something arrived that comes behind what is missing."""
        return bool(self._ahead) or self.done is not None

    def _prefill_owes(self) -> bool:
        owes = not self.prompt_done or self.started is None
        return self._prefill is not None and "prefill" not in self._gone and owes

    def _ask_prefill(self) -> list[Ask]:
        return [Ask("prefill", self._prefill, self.attempt, self.base)] if self._prefill else []

    def _ask_decode(self) -> list[Ask]:
        first = self.base if self._prefill is None else self.base + 1
        return [Ask("decode", self._decode, self.attempt, max(first, len(self.tokens)))]

    def _needs(self, role: Role) -> bool:
        """Whether the attempt cannot complete without `role`. A missing Started alone is no reason to repeat it."""
        if role == "prefill":
            return not self.prompt_done or not (self._decoding or self.done)
        if self.done is None:
            return True
        owed = self.done.tokens > self.base + 1 or self._prefill is None
        return owed and len(self.tokens) < self.done.tokens

    def _finish_if_complete(self) -> None:
        if self.done is None or len(self.tokens) < self.done.tokens:
            return
        teller: Role = "decode" if self._prefill is None else "prefill"
        if self.started is not None or teller in self._gone:
            self.running = False
            self.finish_reason = self.done.finish_reason

    def _is_complete_by_itself(self) -> bool:
        """Whether the merged tokens already are the whole answer and only Done was lost."""
        if self.tokens and self.tokens[-1] in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.tokens) >= self._max_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

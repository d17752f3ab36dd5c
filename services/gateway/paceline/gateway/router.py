"""Which workers run a request: a pure function of what their beacons say and of what was sent since.

Costs are estimated milliseconds; the lowest wins:

    prefill   1000 * (queued tokens + prompt tokens) / prefill rate
    decode    step time * (sequences there + 1), and `FULL_MS` if its pages cannot hold the prompt now

A session prefers one worker of each role, the same for every gateway (rendezvous hashing), because its prefix is
probably cached there. The preference has a price: prefill may cost up to `SLACK_MS` and one computation of the prompt
more than the best, which is what moving would cost at most; decode up to one sequence's step time.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.contracts.errors import ContextTooLong, Unavailable
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.contracts.messages import Beacon, Role
from paceline.gateway.reservations import NOTHING, Pending

SLACK_MS = 200.0
FULL_MS = 10_000.0

# What a worker that has not measured itself yet is taken for.
_TOKENS_PER_S = 1000.0
_STEP_S = 0.01

Reason: TypeAlias = Literal["session", "cheapest"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the decision depends on: beacons of live workers, and by (role, worker) what is reserved there."""

    prefill: Sequence[Beacon]
    decode: Sequence[Beacon]
    pending: Mapping[tuple[Role, str], Pending]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What has to be computed: `tokens` in all, including the output of earlier attempts. An empty `session` prefers
    nobody. Workers whose (role, worker) is in `avoid` are used only if there is no other. One that is `alone` is
    computed by decode, whatever its length."""

    model: str
    tokens: int
    session: bytes
    avoid: frozenset[tuple[Role, str]] = frozenset()
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker that could have been chosen, for one role."""

    worker: str
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen pair; without `prefill` the decode worker computes the prompt itself. The candidates and the reasons
    explain it."""

    prefill: Beacon | None
    decode: Beacon
    prefill_reason: Reason | None
    decode_reason: Reason
    prefill_candidates: tuple[Candidate, ...]
    decode_candidates: tuple[Candidate, ...]


def route(snapshot: Snapshot, prompt: Prompt, *, handoff_min_tokens: int) -> Decision:
    """The workers for `prompt`. Below `handoff_min_tokens` a handoff costs more than it saves.

    Raises `Unavailable` when no decode worker is ready, and `ContextTooLong` when none can ever hold the prompt.
    """
    served = [b for b in snapshot.decode if is_ready(b, prompt.model)]
    decodes = [b for b in served if prompt.tokens < room(b)]
    if served and not decodes:
        raise context_too_long(prompt.tokens, max(room(b) for b in served))
    if not decodes:
        raise Unavailable(f"no decode worker serves {prompt.model!r} now")
    prefills: list[Beacon] = []
    if prompt.tokens >= handoff_min_tokens and not prompt.alone:
        ready = [
            b
            for b in snapshot.prefill
            # One that failed this request is not tried again: a decode worker can always compute the prompt itself.
            if ("prefill", b.worker) not in prompt.avoid
            and is_ready(b, prompt.model)
            and prompt.tokens < room(b)
        ]
        prefills = [p for p in ready if any(_can_hand_over(p, d) for d in decodes)]
    if not prefills:
        return _route_local(snapshot, prompt, decodes)
    return _route_pair(snapshot, prompt, prefills, decodes)


def is_ready(beacon: Beacon, model: str) -> bool:
    """Whether the worker takes new work for `model`."""
    return beacon.state == "ready" and beacon.model is not None and beacon.model.name == model


def room(beacon: Beacon) -> int:
    """Positions that one sequence may have there, bounded by the model and by the whole page pool."""
    context = beacon.model.context if beacon.model else 0
    pages = beacon.load.pages_total
    return min(context, pages * PAGE_TOKENS) if pages else context


def context_too_long(tokens: int, limit: int) -> ContextTooLong:
    """The error in the words that clients search for."""
    return ContextTooLong(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens, "
        "which leaves no room for an answer. Please reduce the length of the messages.",
        param="messages",
    )


def _route_local(snapshot: Snapshot, prompt: Prompt, decodes: list[Beacon]) -> Decision:
    costs = {
        d.worker: _prefill_ms(snapshot, d, prompt.tokens) + _decode_ms(snapshot, d, prompt.tokens)
        for d in _without_avoided(decodes, prompt)
    }
    rates = {d.worker: SLACK_MS + 1000 * prompt.tokens / _rate(d) for d in decodes}
    worker, reason = _choose(costs, prompt.session, lambda w: rates[w])
    return Decision(None, _named(decodes, worker), None, reason, (), _candidates(costs))


def _route_pair(
    snapshot: Snapshot, prompt: Prompt, prefills: list[Beacon], decodes: list[Beacon]
) -> Decision:
    prefill_costs = {
        p.worker: _prefill_ms(snapshot, p, prompt.tokens) for p in _without_avoided(prefills, prompt)
    }
    bounds = {p.worker: SLACK_MS + 1000 * prompt.tokens / _rate(p) for p in prefills}
    worker, prefill_reason = _choose(prefill_costs, prompt.session, lambda w: bounds[w])
    prefill = _named(prefills, worker)

    partners = [d for d in decodes if _can_hand_over(prefill, d)]
    decode_costs = {
        d.worker: _decode_ms(snapshot, d, prompt.tokens) for d in _without_avoided(partners, prompt)
    }
    steps = {d.worker: _step_ms(d) for d in partners}
    worker, decode_reason = _choose(decode_costs, prompt.session, lambda w: steps[w])
    return Decision(
        prefill,
        _named(partners, worker),
        prefill_reason,
        decode_reason,
        _candidates(prefill_costs),
        _candidates(decode_costs),
    )


def _can_hand_over(prefill: Beacon, decode: Beacon) -> bool:
    """Pages go over through memory that both map."""
    return (
        prefill.host == decode.host
        and prefill.model is not None
        and decode.model is not None
        and prefill.model.fingerprint == decode.model.fingerprint
    )


def _without_avoided(workers: list[Beacon], prompt: Prompt) -> list[Beacon]:
    return [b for b in workers if (b.role, b.worker) not in prompt.avoid] or workers


def _prefill_ms(snapshot: Snapshot, beacon: Beacon, tokens: int) -> float:
    pending = _pending(snapshot, beacon)
    # The beacon counts what was sent before it, unless it crossed with it on the way.
    queued = max(beacon.load.queued_tokens, pending.old_tokens) + pending.new_tokens
    return 1000 * (queued + tokens) / _rate(beacon)


def _decode_ms(snapshot: Snapshot, beacon: Beacon, tokens: int) -> float:
    load, pending = beacon.load, _pending(snapshot, beacon)
    sequences = max(load.running + load.waiting, pending.old_requests) + pending.new_requests
    cost = _step_ms(beacon) * (sequences + 1)
    free = load.pages_total - load.pages_used - pending.new_pages
    full = load.pages_total > 0 and free < pages_for(tokens + 1)  # and the first token
    return cost + FULL_MS if full else cost


def _pending(snapshot: Snapshot, beacon: Beacon) -> Pending:
    return snapshot.pending.get((beacon.role, beacon.worker), NOTHING)


def _rate(beacon: Beacon) -> float:
    return beacon.load.prefill_tokens_per_s or _TOKENS_PER_S


def _step_ms(beacon: Beacon) -> float:
    return 1000 * (beacon.load.step_s or _STEP_S)


def _choose(
    costs: Mapping[str, float], session: bytes, bound_ms: Callable[[str], float]
) -> tuple[str, Reason]:
    best = min(costs, key=lambda w: (costs[w], w))
    if session:
        preferred = max(costs, key=lambda w: _rendezvous(session, w))
        if costs[preferred] <= costs[best] + bound_ms(preferred):
            return preferred, "session"
    return best, "cheapest"


def _rendezvous(session: bytes, worker: str) -> bytes:
    return hashlib.sha256(len(session).to_bytes(4, "little") + session + worker.encode()).digest()


def _named(workers: list[Beacon], worker: str) -> Beacon:
    return next(b for b in workers if b.worker == worker)


def _candidates(costs: Mapping[str, float]) -> tuple[Candidate, ...]:
    return tuple(Candidate(w, c) for w, c in sorted(costs.items(), key=lambda item: (item[1], item[0])))

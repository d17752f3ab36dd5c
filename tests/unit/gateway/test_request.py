"""One request's merge: whatever the network and the workers do, the client's tokens have no seam."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import Busy, InvalidRequest, Unavailable, WorkerLost
from paceline.contracts.frames import Tokens
from paceline.contracts.messages import CachedTokens, Done, Event, Failed, FinishReason, Started, Timings
from paceline.gateway.request import MAX_ATTEMPTS, SILENCE_S, Ask, Request

EOS = 2


def make_request(*, prefill: str | None = "p", max_tokens: int = 100) -> Request:
    """A request whose first attempt runs since time 0 on `prefill` and "d"."""
    request = Request(max_tokens=max_tokens, stop_ids=frozenset({EOS}))
    request.begin(prefill, "d", 0.0)
    return request


def frame(index: int, *tokens: int, attempt: int = 1) -> Tokens:
    return Tokens("ab", attempt, index, tokens)


def started(attempt: int = 1, cached: int = 0) -> Started:
    cached_tokens = CachedTokens(device=cached)
    return Started(request_id="ab", attempt=attempt, worker="p", cached=cached_tokens, timings=Timings())


def done(tokens: int, *, attempt: int = 1, reason: FinishReason = "stop") -> Done:
    return Done(request_id="ab", attempt=attempt, worker="d", finish_reason=reason, tokens=tokens)


def failed(code: str, *, attempt: int = 1) -> Failed:
    return Failed(request_id="ab", attempt=attempt, worker="d", code=code, message="m")


def test_tokens_of_both_workers_become_one_answer() -> None:
    r = make_request()
    assert r.on_event(started(cached=64), 0.1) == []
    assert r.on_tokens(frame(0, 10), 0.2) == []
    assert r.prompt_done
    assert r.on_tokens(frame(1, 11, 12), 0.3) == []
    assert not r.over
    assert r.on_event(done(3), 0.4) == []
    assert (r.tokens, r.finish_reason, r.error) == ([10, 11, 12], "stop", None)
    assert r.started == started(cached=64)


def test_repeats_overlaps_and_old_attempts_are_dropped() -> None:
    r = make_request()
    r.on_tokens(frame(0, 10), 0.1)
    r.on_tokens(frame(0, 10), 0.1)
    r.on_tokens(frame(1, 11, 12), 0.1)
    r.on_tokens(frame(1, 11), 0.1)
    r.on_tokens(frame(2, 12, 13), 0.1)
    r.on_tokens(frame(4, 99, attempt=2), 0.1)
    r.on_event(failed("invalid_request", attempt=2), 0.1)
    assert (r.tokens, r.over) == ([10, 11, 12, 13], False)


def test_a_gap_is_asked_for_once_and_closed_by_whatever_comes() -> None:
    r = make_request()
    r.on_event(started(), 0.0)
    r.on_tokens(frame(0, 10), 0.0)
    assert r.on_tokens(frame(3, 13), 0.1) == [Ask("decode", "d", 1, 1)]
    assert r.on_tokens(frame(4, 14), 0.2) == []
    assert r.tokens == [10]
    assert r.on_tokens(frame(1, 11, 12), 0.3) == []
    assert r.tokens == [10, 11, 12, 13, 14]
    assert r.on_tokens(frame(6, 16), 0.4) == [Ask("decode", "d", 1, 5)]
    r.on_tokens(frame(5, 15, 16, 17), 0.5)
    assert r.on_tokens(frame(8, 18), 0.6) == []
    assert r.tokens == list(range(10, 19))


def test_the_first_token_is_asked_of_prefill_and_decodes_tokens_wait_for_it() -> None:
    r = make_request()
    assert r.on_tokens(frame(1, 11), 0.0) == [Ask("prefill", "p", 1, 0)]
    assert r.tokens == []
    r.on_tokens(frame(0, 10), 0.1)
    assert r.tokens == [10, 11]


def test_done_with_missing_tokens_asks_for_them() -> None:
    r = make_request()
    r.on_event(started(), 0.0)
    r.on_tokens(frame(0, 10), 0.0)
    assert r.on_event(done(3), 0.0) == [Ask("decode", "d", 1, 1)]
    r.on_tokens(frame(1, 11, 12), 0.0)
    assert r.finish_reason == "stop"


def test_without_started_the_usage_is_unknown_so_it_is_asked_for() -> None:
    r = make_request()
    r.on_tokens(frame(0, 10), 0.0)
    assert r.on_event(done(1), 0.0) == [Ask("prefill", "p", 1, 0)]
    assert not r.over
    r.on_event(started(), 0.1)
    assert r.finish_reason == "stop"


def test_started_that_nobody_has_any_more_does_not_cost_the_answer() -> None:
    r = make_request()
    r.on_tokens(frame(0, 10), 0.0)
    r.on_event(done(1), 0.0)
    r.on_lost("prefill", "p")
    assert (r.finish_reason, r.started) == ("stop", None)


@pytest.mark.parametrize(
    ("seen", "asks"),
    [
        ("nothing", [Ask("prefill", "p", 1, 0), Ask("decode", "d", 1, 1)]),
        ("started", [Ask("prefill", "p", 1, 0), Ask("decode", "d", 1, 1)]),
        ("first token", [Ask("prefill", "p", 1, 0), Ask("decode", "d", 1, 1)]),
        ("three tokens", [Ask("decode", "d", 1, 3)]),
    ],
)
def test_silence_asks_whoever_owes(seen: str, asks: list[Ask]) -> None:
    r = make_request()
    if seen != "nothing":
        r.on_event(started(), 0.0)
    if seen in ("first token", "three tokens"):
        r.on_tokens(frame(0, 10), 0.0)
    if seen == "three tokens":
        r.on_tokens(frame(1, 11, 12), 0.0)
    assert r.tick(SILENCE_S - 0.01) == []
    assert r.tick(SILENCE_S) == asks
    assert r.tick(SILENCE_S + 0.5) == []
    assert r.tick(2 * SILENCE_S) == asks


def test_with_local_prefill_decode_owes_everything() -> None:
    r = make_request(prefill=None)
    assert r.tick(SILENCE_S) == [Ask("decode", "d", 1, 0)]
    r.on_tokens(frame(0, 10), 1.0)
    assert r.on_event(done(1), 1.0) == [Ask("decode", "d", 1, 1)]
    r.on_event(started(), 1.0)
    assert r.finish_reason == "stop"


def test_frames_that_close_no_gap_are_no_progress() -> None:
    r = make_request()
    r.on_event(started(), 0.0)
    r.on_tokens(frame(0, 10), 0.0)
    r.on_tokens(frame(2, 12), 0.1)
    r.on_tokens(frame(3, 13), 0.9)
    assert r.tick(1.0) == [Ask("decode", "d", 1, 1)]


def test_a_lost_worker_begins_the_next_attempt_behind_what_is_merged() -> None:
    r = make_request()
    r.on_event(started(cached=64), 0.0)
    r.on_tokens(frame(0, 10), 0.0)
    r.on_tokens(frame(1, 11), 0.0)
    r.on_tokens(frame(3, 13), 0.0)
    r.on_lost("decode", "d")
    assert (r.running, r.over, r.attempt, r.tokens) == (False, False, 2, [10, 11])
    r.on_tokens(frame(2, 12), 0.1)
    assert r.tokens == [10, 11]
    r.begin("p2", "d2", 1.0)
    assert (r.base, r.prompt_done) == (2, False)
    assert r.tick(2.0) == [Ask("prefill", "p2", 2, 2), Ask("decode", "d2", 2, 3)]
    r.on_tokens(frame(2, 12, attempt=2), 2.1)
    r.on_event(started(attempt=2, cached=0), 2.1)
    r.on_tokens(frame(3, 13, attempt=2), 2.1)
    r.on_event(done(4, attempt=2), 2.1)
    assert (r.tokens, r.finish_reason) == ([10, 11, 12, 13], "stop")
    assert r.started == started(cached=64)


@pytest.mark.parametrize("phase", ["computing", "first token only", "decoding", "done"])
def test_a_lost_prefill_worker_matters_until_decode_goes_on(phase: str) -> None:
    r = make_request()
    if phase != "computing":
        r.on_event(started(), 0.0)
        r.on_tokens(frame(0, 10), 0.0)
    if phase == "decoding":
        r.on_tokens(frame(1, 11), 0.0)
    if phase == "done":
        r.on_event(done(3), 0.0)
    r.on_lost("prefill", "p")
    assert r.running == (phase in ("decoding", "done"))


def test_losing_a_worker_that_is_not_ours_changes_nothing() -> None:
    r = make_request()
    r.on_lost("decode", "p")
    r.on_lost("prefill", "d")
    r.on_lost("kvstore", "p")
    assert r.running


def test_decode_may_die_once_prefill_said_done() -> None:
    r = make_request()
    r.on_event(done(1), 0.0)
    r.on_lost("decode", "d")
    assert r.running
    r.on_tokens(frame(0, EOS), 0.0)
    r.on_event(started(), 0.0)
    assert r.finish_reason == "stop"


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "reason"), [([10, EOS], 9, "stop"), ([10, 11], 2, "length"), ([10, 11], 3, None)]
)
def test_an_answer_that_lacks_only_done_is_not_repeated(
    tokens: list[int], max_tokens: int, reason: str | None
) -> None:
    r = make_request(max_tokens=max_tokens)
    r.on_tokens(frame(0, *tokens), 0.0)
    r.on_lost("decode", "d")
    assert (r.finish_reason, r.attempt) == (reason, 1 if reason else 2)


def test_a_retryable_failure_leads_to_bounded_attempts() -> None:
    r = make_request()
    for attempt in range(1, MAX_ATTEMPTS):
        r.on_event(failed("worker_lost", attempt=attempt), 0.0)
        assert (r.attempt, r.over) == (attempt + 1, False)
        r.begin("p", "d", 0.0)
    r.on_event(failed("unavailable", attempt=MAX_ATTEMPTS), 0.0)
    assert isinstance(r.error, Unavailable)


def test_a_failure_that_would_repeat_itself_ends_the_request() -> None:
    r = make_request()
    r.on_event(failed("invalid_request"), 0.0)
    assert isinstance(r.error, InvalidRequest)
    r.give_up(Busy("later"))
    assert isinstance(r.error, InvalidRequest)


def test_a_worker_that_cancels_on_its_own_is_lost_to_the_attempt() -> None:
    r = make_request()
    r.on_event(failed("cancelled"), 0.0)
    assert (r.attempt, r.over) == (2, False)


def test_nothing_happens_once_it_is_over() -> None:
    r = make_request()
    r.on_event(started(), 0.0)
    r.on_tokens(frame(0, 10), 0.0)
    r.on_event(done(1), 0.0)
    r.on_tokens(frame(1, 11), 0.0)
    r.on_event(failed("internal"), 0.0)
    r.on_lost("decode", "d")
    r.give_up(WorkerLost("x"))
    assert (r.tokens, r.finish_reason, r.error, r.tick(99.0)) == ([10], "stop", None, [])


@dataclass
class Network:
    """Workers that compute `truth`, behind a network whose misbehaviour hypothesis draws."""

    truth: list[int]
    data: st.DataObject
    request: Request = field(init=False)
    prefill: str | None = None
    base: int = 0
    sent: list[Tokens | Event] = field(default_factory=list)
    now: float = 0.0
    attempts: int = 0

    def __post_init__(self) -> None:
        self.request = Request(max_tokens=len(self.truth), stop_ids=frozenset())

    def dispatch(self) -> None:
        self.attempts += 1
        self.prefill = self.data.draw(st.sampled_from(["p", None]), label="prefill")
        self.base = len(self.request.tokens)
        self.request.begin(self.prefill, "d", self.now)
        self.publish(Ask("decode", "d", self.request.attempt, 0))
        self.publish(Ask("prefill", "p", self.request.attempt, 0))

    def publish(self, ask: Ask) -> None:
        """What a worker publishes (again) from `ask.index` on, in frames of any size."""
        if ask.attempt != self.request.attempt:
            return
        local = self.prefill is None
        if ask.role == "prefill" and local:
            return
        first, end = (self.base, len(self.truth)) if local else (self.base + 1, len(self.truth))
        if ask.role == "prefill":
            first, end = self.base, self.base + 1
        if ask.role == "prefill" or local:
            self.sent.append(started(ask.attempt))
        index = max(first, ask.index)
        while index < end:
            count = self.data.draw(st.integers(1, 3), label="frame size")
            self.sent.append(
                Tokens("ab", ask.attempt, index, tuple(self.truth[index : min(end, index + count)]))
            )
            index += count
        finishes = len(self.truth) == self.base + 1
        if local or (ask.role == "prefill") == finishes:
            self.sent.append(done(len(self.truth), attempt=ask.attempt, reason="length"))

    def deliver(self, position: int) -> None:
        message = self.sent[position]
        if isinstance(message, Tokens):
            asks = self.request.on_tokens(message, self.now)
        else:
            asks = self.request.on_event(message, self.now)
        for ask in asks:
            self.publish(ask)

    def misbehave(self) -> None:
        """One random thing: deliver any message, repeat one, lose one, pass time, lose a worker."""
        what = self.data.draw(st.sampled_from(["next", "any", "repeat", "drop", "silence", "lose"]))
        if what == "silence":
            self.now += SILENCE_S
            for ask in self.request.tick(self.now):
                self.publish(ask)
        elif what == "lose" and self.attempts < MAX_ATTEMPTS:
            if self.data.draw(st.booleans(), label="decode"):
                self.request.on_lost("decode", "d")
            elif self.prefill:
                self.request.on_lost("prefill", self.prefill)
        elif self.sent:
            position = 0 if what == "next" else self.data.draw(st.integers(0, len(self.sent) - 1))
            if what != "drop":
                self.deliver(position)
            if what != "repeat":
                del self.sent[position]


@settings(deadline=None)
@given(length=st.integers(1, 8), trouble=st.integers(0, 40), data=st.data())
def test_the_answer_is_complete_under_any_loss_reordering_repetition_and_failover(
    length: int, trouble: int, data: st.DataObject
) -> None:
    network = Network([100 + i for i in range(length)], data)
    request = network.request
    for _ in range(trouble):
        if not request.running and not request.over:
            network.dispatch()
        network.misbehave()
        assert request.tokens == network.truth[: len(request.tokens)]
    for _ in range(20):  # then the network behaves
        if request.over:
            break
        if not request.running:
            network.dispatch()
        while network.sent and request.running:
            network.deliver(0)
            del network.sent[0]
        network.now += SILENCE_S
        for ask in request.tick(network.now):
            network.publish(ask)
    assert (request.finish_reason, request.error, request.tokens) == ("length", None, network.truth)

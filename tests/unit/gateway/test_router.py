"""Routing decisions by exact cost, and the reservations that they count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import ContextTooLong, Unavailable
from paceline.contracts.hashing import pages_for
from paceline.contracts.messages import Beacon, Load, ModelInfo, Role
from paceline.gateway.reservations import NOTHING, Pending, Reservation, Reservations
from paceline.gateway.router import FULL_MS, Candidate, Decision, Prompt, Snapshot, room, route
from tests.unit.gateway.builders import MODEL, make_beacon


def decide(
    prefill: list[Beacon],
    decode: list[Beacon],
    *,
    tokens: int = 1000,
    session: bytes = b"",
    avoid: frozenset[tuple[Role, str]] = frozenset(),
    pending: dict[tuple[Role, str], Pending] | None = None,
    handoff_min_tokens: int = 256,
) -> Decision:
    snapshot = Snapshot(prefill, decode, pending or {})
    return route(snapshot, Prompt("m", tokens, session, avoid), handoff_min_tokens=handoff_min_tokens)


def prefill_load(queued: int = 0, rate: float = 1000.0) -> Load:
    return Load(queued_tokens=queued, prefill_tokens_per_s=rate)


def decode_load(
    running: int = 0, waiting: int = 0, step_s: float = 0.02, used: int = 0, total: int = 0
) -> Load:
    return Load(running=running, waiting=waiting, step_s=step_s, pages_used=used, pages_total=total)


def prefill_of(decision: Decision) -> tuple[str, str | None]:
    assert decision.prefill is not None
    return decision.prefill.worker, decision.prefill_reason


def test_the_cheapest_pair_is_chosen_and_every_candidate_has_its_cost() -> None:
    decision = decide(
        [
            make_beacon("prefill", "p1", load=prefill_load(queued=500)),
            make_beacon("prefill", "p2", load=prefill_load(queued=3000, rate=4000)),
        ],
        [
            make_beacon("decode", "d1", load=decode_load(running=2, waiting=1)),
            make_beacon("decode", "d2", load=decode_load(running=3, step_s=0.01)),
        ],
    )
    assert prefill_of(decision) == ("p2", "cheapest")
    assert decision.prefill_candidates == (Candidate("p2", 1000.0), Candidate("p1", 1500.0))
    assert (decision.decode.worker, decision.decode_reason) == ("d2", "cheapest")
    assert decision.decode_candidates == (Candidate("d2", 40.0), Candidate("d1", 80.0))


def test_a_small_prompt_skips_the_handoff() -> None:
    prefill, decode = [make_beacon("prefill", "p1")], [make_beacon("decode", "d1", load=prefill_load())]
    small = decide(prefill, decode, tokens=255)
    assert (small.prefill, small.prefill_reason, small.prefill_candidates) == (None, None, ())
    assert small.decode_candidates == (Candidate("d1", 255.0 + 10.0),)
    assert decide(prefill, decode, tokens=256).prefill is prefill[0]


def test_without_a_prefill_worker_decode_computes_the_prompt() -> None:
    decision = decide(
        [],
        [
            make_beacon(
                "decode", "d1", load=Load(queued_tokens=4000, prefill_tokens_per_s=2000, step_s=0.01)
            ),
            make_beacon("decode", "d2", load=Load(prefill_tokens_per_s=500, step_s=0.01)),
        ],
    )
    assert decision.prefill is None
    assert decision.decode_candidates == (Candidate("d2", 2010.0), Candidate("d1", 2510.0))


def test_nobody_to_decode_is_unavailable() -> None:
    other = ModelInfo(
        name="x", context=4096, fingerprint=b"p" * 32, kv_dtype="float32", page_bytes=1, engine="fake"
    )
    idle = [
        make_beacon("decode", "d1", state="starting"),
        make_beacon("decode", "d2", state="draining"),
        make_beacon("decode", "d3", model=None),
        make_beacon("decode", "d4", model=other),
    ]
    with pytest.raises(Unavailable, match="no decode worker serves 'm' now"):
        decide([make_beacon("prefill", "p1")], idle)


@pytest.mark.parametrize(
    "prefill",
    [
        make_beacon("prefill", "p1", host="elsewhere"),
        make_beacon(
            "prefill",
            "p1",
            model=ModelInfo(
                name="m", context=4096, fingerprint=b"q" * 32, kv_dtype="float32", page_bytes=1, engine="fake"
            ),
        ),
        make_beacon("prefill", "p1", state="draining"),
        make_beacon("prefill", "p1", load=Load(pages_total=15)),
    ],
    ids=["other host", "other profile", "draining", "too small"],
)
def test_a_prefill_worker_that_cannot_hand_over_is_not_used(prefill: Beacon) -> None:
    assert decide([prefill], [make_beacon("decode", "d1")]).prefill is None


def test_the_decode_worker_shares_host_and_profile_with_the_prefill_worker() -> None:
    decision = decide(
        [make_beacon("prefill", "p1", host="b")],
        [
            make_beacon("decode", "d1", host="a"),
            make_beacon("decode", "d2", host="b", load=decode_load(running=50)),
        ],
    )
    assert decision.decode.worker == "d2"
    assert [c.worker for c in decision.decode_candidates] == ["d2"]


def test_a_decode_worker_whose_pages_are_full_is_the_last_choice() -> None:
    needed = pages_for(1001)
    decision = decide(
        [],
        [
            make_beacon("decode", "d1", load=decode_load(used=100 - needed + 1, total=100)),
            make_beacon("decode", "d2", load=decode_load(running=5, used=100 - needed, total=100)),
        ],
    )
    assert decision.decode_candidates == (
        Candidate("d2", 1000.0 + 120.0),
        Candidate("d1", 1000.0 + 20.0 + FULL_MS),
    )


def test_a_prompt_that_fits_nowhere_is_refused_in_the_words_clients_look_for() -> None:
    decodes = [
        make_beacon("decode", "d1", load=Load(pages_total=10)),
        make_beacon("decode", "d2", load=Load(pages_total=2)),
    ]
    assert [room(d) for d in decodes] == [640, 128]
    with pytest.raises(ContextTooLong, match="maximum context length is 640 tokens") as caught:
        decide([], decodes, tokens=640)
    assert caught.value.param == "messages"
    assert decide([], decodes, tokens=639).decode.worker == "d1"
    with pytest.raises(ContextTooLong, match="maximum context length is 4096 tokens"):
        decide([], [make_beacon("decode", "d1")], tokens=4096)


def test_a_session_keeps_its_worker_until_the_price_exceeds_the_bound() -> None:
    """Moving costs at most one computation of the prompt (1000 ms here), and 200 ms are free."""
    workers = ["p1", "p2", "p3"]
    idle = [make_beacon("prefill", w, load=prefill_load()) for w in workers]
    decode = [make_beacon("decode", "d1")]
    home, reason = prefill_of(decide(idle, decode, session=b"s"))
    assert reason == "session"

    def with_queue(queued: int) -> tuple[str, str | None]:
        queues = {w: queued if w == home else 0 for w in workers}
        busy = [make_beacon("prefill", w, load=prefill_load(q)) for w, q in queues.items()]
        return prefill_of(decide(busy, decode, session=b"s"))

    assert with_queue(1200) == (home, "session")
    moved, reason = with_queue(1201)
    assert (moved != home, reason) == (True, "cheapest")


def test_a_session_keeps_its_decode_worker_only_within_one_sequence() -> None:
    workers = ["d1", "d2", "d3"]
    prefill = [make_beacon("prefill", "p1")]
    home = decide(
        prefill, [make_beacon("decode", w, load=decode_load()) for w in workers], session=b"s"
    ).decode.worker

    def with_running(running: int) -> Decision:
        return decide(
            prefill,
            [make_beacon("decode", w, load=decode_load(running if w == home else 0)) for w in workers],
            session=b"s",
        )

    assert with_running(1).decode.worker == home
    assert with_running(2).decode.worker != home


def test_sessions_spread_and_losing_a_worker_moves_only_its_own() -> None:
    prefill = [make_beacon("prefill", f"p{i}", load=prefill_load()) for i in range(4)]
    decode = [make_beacon("decode", "d1")]
    sessions = [str(i).encode() for i in range(400)]

    def homes(workers: list[Beacon]) -> dict[bytes, str]:
        chosen = {s: decide(workers, decode, session=s).prefill for s in sessions}
        return {s: b.worker for s, b in chosen.items() if b}

    before, after = homes(prefill), homes(prefill[:3])
    counts = [list(before.values()).count(f"p{i}") for i in range(4)]
    assert min(counts) > 60
    assert all(after[s] == w for s, w in before.items() if w != "p3")


def test_an_avoided_worker_is_used_only_if_there_is_no_other() -> None:
    prefill = [make_beacon("prefill", "w1"), make_beacon("prefill", "w2", load=prefill_load(queued=9000))]
    decode = [make_beacon("decode", "w1")]
    decision = decide(prefill, decode, avoid=frozenset({("prefill", "w1"), ("decode", "w1")}))
    assert decision.prefill is prefill[1]
    assert decision.decode is decode[0]


def test_reservations_weigh_like_reported_load() -> None:
    prefill = [
        make_beacon("prefill", "p1", load=prefill_load(queued=100)),
        make_beacon("prefill", "p2", load=prefill_load()),
    ]
    decode = [
        make_beacon("decode", "d1", load=decode_load(running=1)),
        make_beacon("decode", "d2", load=decode_load()),
    ]
    pending: dict[tuple[Role, str], Pending] = {
        ("prefill", "p1"): Pending(old_requests=1, old_tokens=400, new_requests=1, new_tokens=50),
        ("prefill", "p2"): Pending(old_tokens=300, new_tokens=0),
        ("decode", "d1"): Pending(old_requests=1, new_requests=1),
        ("decode", "d2"): Pending(old_requests=4, new_requests=1),
    }
    decision = decide(prefill, decode, pending=pending)
    assert decision.prefill_candidates == (Candidate("p2", 1300.0), Candidate("p1", 1450.0))
    assert decision.decode_candidates == (Candidate("d1", 60.0), Candidate("d2", 120.0))


def test_reserved_pages_count_as_used() -> None:
    decode = [make_beacon("decode", "d1", load=decode_load(total=20))]
    pending: dict[tuple[Role, str], Pending] = {("decode", "d1"): Pending(new_pages=20 - pages_for(1001) + 1)}
    assert decide([], decode, pending=pending).decode_candidates[0].cost_ms > FULL_MS
    assert decide([], decode).decode_candidates[0].cost_ms < FULL_MS


def test_a_reservation_is_old_once_a_newer_beacon_came_and_void_in_another_life() -> None:
    first, second = make_beacon("prefill", "p1"), make_beacon("prefill", "p1", load=Load(running=1))
    reservations = Reservations()
    taken = reservations.take(first, tokens=100, pages=2)
    assert reservations.pending(first) == Pending(new_requests=1, new_tokens=100, new_pages=2)
    assert reservations.pending(second) == Pending(old_requests=1, old_tokens=100)
    assert reservations.pending(make_beacon("prefill", "p1", incarnation="i2")) == NOTHING
    assert reservations.pending(make_beacon("decode", "p1")) == NOTHING
    taken.computed()
    assert reservations.pending(second) == Pending(old_requests=1)


@given(st.lists(st.integers(0, 9)))
def test_reservations_never_go_negative_however_often_they_are_released(order: list[int]) -> None:
    reservations = Reservations()
    beacon = make_beacon("decode", "d1")
    taken = [reservations.take(beacon, tokens=i, pages=1) for i in range(10)]
    for i in order:
        reservations.release(taken[i])
    left: list[Reservation] = [t for i, t in enumerate(taken) if i not in order]
    assert len(reservations) == len(left)
    expected = Pending(new_requests=len(left), new_tokens=sum(t.tokens for t in left), new_pages=len(left))
    assert reservations.pending(beacon) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.sampled_from([0.0, 100.0, 5000.0])), min_size=1, max_size=6
    ),
    st.binary(max_size=4),
)
def test_the_chosen_worker_never_costs_more_than_the_bound(
    loads: list[tuple[int, float]], session: bytes
) -> None:
    prefill = [make_beacon("prefill", f"p{i}", load=prefill_load(q, r)) for i, (q, r) in enumerate(loads)]
    decision = decide(prefill, [make_beacon("decode", "d1", model=MODEL)], session=session)
    assert decision.prefill is not None
    costs = {c.worker: c.cost_ms for c in decision.prefill_candidates}
    rate = decision.prefill.load.prefill_tokens_per_s or 1000.0
    slack = 200 + 1000 * 1000 / rate if decision.prefill_reason == "session" else 0
    assert costs[decision.prefill.worker] <= min(costs.values()) + slack

"""The scheduler by exact values: which rows run, in which pages, and what is left."""

import numpy as np
import pytest

from paceline.contracts.errors import IntegrityError
from paceline.contracts.hashing import tenant_salt
from paceline.contracts.messages import CachedTokens, Sampling, TokenTree
from paceline.engine.sampling import sample
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence, State
from tests.builders import logits_of, make_scheduler, make_sequence, run, successor


def chain(*tokens: int) -> TokenTree:
    return TokenTree(tokens=list(tokens), parents=list(range(-1, len(tokens) - 1)))


def finish(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """Run until the sequence has ended; its output."""
    while sequence.finish_reason is None:
        run(scheduler)
    return sequence.tokens[sequence.prompt_tokens :]


def expected(last: int, count: int) -> list[int]:
    tokens = [last]
    for _ in range(count):
        tokens.append(successor(tokens[-1]))
    return tokens[1:]


def test_a_prompt_runs_in_chunks_and_only_its_end_wants_logits() -> None:
    scheduler = make_scheduler(step_tokens=100)
    sequence = make_sequence(150)
    scheduler.add(sequence)
    first, result = run(scheduler)
    assert list(first.step.positions) == list(range(100))
    assert list(first.step.contexts) == [100]
    assert list(first.step.logit_rows) == []
    assert first.step.page_table.tolist() == [[[0, 1, 2]]]
    assert list(first.step.slots[0, [0, 64, 99]]) == [0, 64, 99]
    assert result.advances[0].tokens == ()
    assert result.advances[0].computed == 100
    assert scheduler.pool.lookup(sequence.hashes) == [0]
    second, result = run(scheduler)
    assert list(second.step.tokens) == list(range(100, 150))
    assert list(second.step.logit_rows) == [49]
    assert result.advances[0].tokens == (successor(149),)
    third, _ = run(scheduler)
    assert list(third.step.tokens) == [successor(149)]
    assert list(third.step.positions) == [150]


def test_decoding_comes_before_chunks_and_chunks_take_the_rest_of_the_budget() -> None:
    scheduler = make_scheduler(step_tokens=20)
    a, b, c = (
        make_sequence(10, name="a"),
        make_sequence([1] * 10, name="b"),
        make_sequence([2] * 40, name="c"),
    )
    scheduler.add(a)
    scheduler.add(b)
    run(scheduler)
    scheduler.add(c)
    plan, _ = run(scheduler)
    assert [(e.sequence.request_id, e.rows) for e in plan.entries] == [("a", 1), ("b", 1), ("c", 18)]
    assert list(plan.step.query_starts) == [0, 1, 2, 20]


def test_a_short_prompt_overtakes_a_long_one_at_a_chunk_boundary_but_not_for_ever() -> None:
    scheduler = make_scheduler(pages=64, step_tokens=50)
    long = make_sequence([1] * 1000, name="long", arrival=0.0)
    scheduler.add(long)
    run(scheduler)
    scheduler.add(make_sequence([2] * 60, name="short", arrival=0.1))
    plan, _ = run(scheduler, now=0.1)
    assert [e.sequence.request_id for e in plan.entries] == ["short"]
    scheduler.add(make_sequence([3] * 60, name="late", arrival=2.0))
    plan, _ = run(scheduler, now=2.0)
    assert [(e.sequence.request_id, e.rows) for e in plan.entries] == [("short", 10), ("long", 40)]


def test_sequences_join_and_leave_between_steps() -> None:
    scheduler = make_scheduler()
    a, b = make_sequence([1], output=3, name="a"), make_sequence([5], output=2, name="b")
    scheduler.add(a)
    run(scheduler)
    scheduler.add(b)
    run(scheduler)
    plan, result = run(scheduler)
    assert [e.sequence.request_id for e in plan.entries] == ["a", "b"]
    assert [x.finish_reason for x in result.advances] == ["length", "length"]
    assert a.tokens == [1, *expected(1, 3)]
    assert b.tokens == [5, *expected(5, 2)]
    assert (scheduler.idle, scheduler.pool.used) == (True, 0)


def test_a_stop_token_ends_a_sequence_and_is_part_of_it() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], stop=frozenset({57}))  # 1 -> 8 -> 57
    scheduler.add(sequence)
    assert finish(scheduler, sequence) == [8, 57]
    assert sequence.finish_reason == "stop"


def test_a_repeated_prompt_reuses_its_full_pages_but_runs_at_least_one_token() -> None:
    scheduler = make_scheduler()
    cold, warm = make_sequence(128, output=1), make_sequence(128, output=1)
    scheduler.add(cold)
    run(scheduler)
    scheduler.add(warm)
    plan, _ = run(scheduler)
    assert cold.cached == CachedTokens(device=0)
    assert warm.cached == CachedTokens(device=64)
    assert list(plan.step.positions) == list(range(64, 128))
    assert warm.tokens == cold.tokens


def test_a_growing_conversation_reuses_its_answers_too() -> None:
    scheduler = make_scheduler()
    turn = make_sequence(60, output=10)
    scheduler.add(turn)
    finish(scheduler, turn)
    longer = make_sequence([*turn.tokens, 1, 2, 3], output=1)
    scheduler.add(longer)
    run(scheduler)
    assert longer.cached == CachedTokens(device=64)


def test_another_tenant_shares_nothing() -> None:
    scheduler = make_scheduler()
    for salt in (tenant_salt("a"), tenant_salt("b")):
        sequence = make_sequence(130, output=1, salt=salt)
        scheduler.add(sequence)
        run(scheduler)
        assert sequence.cached == CachedTokens(device=0)


def test_imported_tokens_count_as_host_tier() -> None:
    scheduler = make_scheduler()
    warm = make_sequence(200, output=1)
    scheduler.add(warm)
    run(scheduler)
    again = make_sequence(200, output=1)
    again.imported = 128
    scheduler.add(again)
    run(scheduler)
    assert again.cached == CachedTokens(device=64, host=128)


def test_the_latest_arrival_is_preempted_and_recomputed_to_the_same_answer() -> None:
    scheduler = make_scheduler(pages=4, step_tokens=256)
    old, new = (
        make_sequence([1] * 64, output=70, name="old"),
        make_sequence([2] * 64, output=70, name="new", arrival=1),
    )
    scheduler.add(old)
    scheduler.add(new)
    preempted = False
    while old.finish_reason is None:
        run(scheduler)
        preempted |= new.state is State.WAITING
        assert old.state is not State.WAITING
    assert preempted
    finish(scheduler, new)
    assert old.tokens[64:] == expected(1, 70)
    assert new.tokens[64:] == expected(2, 70)
    assert scheduler.pool.used == 0


def test_a_prompt_without_room_waits_and_is_not_overtaken_for_pages() -> None:
    scheduler = make_scheduler(pages=4)
    scheduler.add(make_sequence([1] * 150, output=20, name="a"))
    run(scheduler)
    scheduler.add(make_sequence([2] * 150, name="b", arrival=0.0))
    scheduler.add(make_sequence([3] * 10, name="c", arrival=0.9))
    plan, _ = run(scheduler, now=1.0)
    assert [e.sequence.request_id for e in plan.entries] == ["a"]


def test_room_for_the_largest_prompt_is_kept_from_those_that_nobody_waits_for() -> None:
    scheduler = make_scheduler(pages=8, context=256)
    early = [
        make_sequence([i] * 100, output=1, name=str(i), arrival=i, hold=True, early=True) for i in range(4)
    ]
    for sequence in early:
        scheduler.add(sequence)
    run(scheduler)
    assert [s.state for s in early] == [State.HELD, State.HELD, State.WAITING, State.WAITING]
    assert scheduler.schedule(0.0) is None
    scheduler.expect(early[3])
    plan, _ = run(scheduler)
    assert [e.sequence for e in plan.entries] == [early[3]]


def test_a_prompt_that_runs_goes_on_while_a_shorter_one_waits_for_its_pages() -> None:
    scheduler = make_scheduler(pages=4, step_tokens=50)
    long = make_sequence([1] * 200, output=1, name="long")
    scheduler.add(long)
    run(scheduler)
    scheduler.add(make_sequence([2] * 10, output=1, name="short"))
    finish(scheduler, long)
    plan, _ = run(scheduler)
    assert [e.sequence.request_id for e in plan.entries] == ["short"]


def test_handoffs_do_not_take_the_pages_that_a_preempted_sequence_waits_for() -> None:
    scheduler = make_scheduler(pages=4)
    first, second = (
        make_sequence([1] * 100, output=27, name="1"),
        make_sequence([2] * 128, name="2", arrival=1),
    )
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(2):
        run(scheduler, now=1.0)
    assert second.state is State.WAITING  # it grew over a page border, and is the latest
    handoff = make_sequence([3] * 60, name="3", arrival=5, remote=True)
    scheduler.add(handoff)
    run(scheduler, now=6.0)
    assert (second.state, handoff.state) == (State.WAITING, State.WAITING)
    finish(scheduler, first)
    plan = scheduler.schedule(6.0)
    assert plan is not None
    assert (second.state, handoff.state) == (State.RUNNING, State.FILLING)


def test_a_sequence_without_a_token_to_sample_fails_alone() -> None:
    scheduler = make_scheduler()
    good, bad = make_sequence([1], name="good"), make_sequence([2], name="bad")
    scheduler.add(good)
    scheduler.add(bad)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    logits = logits_of(plan)
    logits[1] = np.nan
    result = scheduler.commit(
        plan, logits, lambda row, s, at: sample(row, s.sampling, at, s.adjustments), 0.0
    )
    assert [f.sequence for f in result.failures] == [bad]
    assert [a.sequence for a in result.advances] == [good]
    assert bad.state is State.GONE
    assert finish(scheduler, good) == expected(1, 8)


def test_accepted_drafts_advance_several_tokens_in_one_step() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], output=10)
    scheduler.add(sequence)
    run(scheduler)  # -> 8
    scheduler.offer(sequence, 2, chain(57, 400, 9))  # 8 -> 57 -> 400 -> 801
    plan, result = run(scheduler)
    assert list(plan.step.tokens) == [8, 57, 400, 9]
    assert list(plan.step.positions) == [1, 2, 3, 4]
    assert list(plan.step.parents) == [-1, 0, 1, 2]
    assert list(plan.step.logit_rows) == [0, 1, 2, 3]
    assert result.advances[0].tokens == (57, 400, 801)
    assert (sequence.computed, sequence.drafted, sequence.accepted) == (4, 3, 2)
    assert result.moves.size == 0
    assert finish(scheduler, sequence) == expected(1, 10)


def test_the_kv_of_an_accepted_branch_is_moved_together() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], output=10)
    scheduler.add(sequence)
    run(scheduler)
    tree = TokenTree(tokens=[3, 57, 4, 400], parents=[-1, -1, 1, 1])
    scheduler.offer(sequence, 2, tree)
    plan, result = run(scheduler)
    assert list(plan.step.positions) == [1, 2, 2, 3, 3]
    assert list(plan.step.parents) == [-1, 0, 0, 2, 2]
    assert result.advances[0].tokens == (57, 400, 801)
    # 57 ran in the slot of position 3 and 400 in that of 5; they belong to positions 2 and 3.
    assert result.moves.tolist() == [[[3, 2], [5, 3]]]
    assert finish(scheduler, sequence) == expected(1, 10)


def test_a_late_draft_is_used_for_the_tokens_that_are_still_ahead() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], output=10)
    scheduler.add(sequence)
    run(scheduler)
    scheduler.offer(sequence, 1, chain(8, 57))
    plan, _ = run(scheduler)
    assert list(plan.step.tokens) == [8, 57]
    scheduler.offer(sequence, 1, chain(9, 9, 9))
    plan, _ = run(scheduler)
    assert len(plan.step.tokens) == 1


def test_drafts_do_not_run_past_the_limit_or_a_stop_token() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence([1], output=3)
    scheduler.add(sequence)
    run(scheduler)
    scheduler.offer(sequence, 2, chain(57, 400, 801, 608))
    plan, _ = run(scheduler)
    assert len(plan.step.tokens) == 2
    assert sequence.tokens == [1, 8, 57, 400]
    stopping = make_sequence([1], output=9, stop=frozenset({57}))
    scheduler.add(stopping)
    run(scheduler)
    scheduler.offer(stopping, 2, chain(57, 400, 801))
    run(scheduler)
    assert stopping.tokens == [1, 8, 57]
    assert stopping.finish_reason == "stop"


def test_drafts_change_no_sampled_token() -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=3, frequency_penalty=0.3)
    outputs: list[list[int]] = []
    for draft in (False, True):
        scheduler = make_scheduler()
        sequence = make_sequence([1], output=12, sampling=sampling)
        scheduler.add(sequence)
        run(scheduler)
        while sequence.finish_reason is None:
            if draft:
                ahead = outputs[0][len(sequence.tokens) - 1 :][:4]
                scheduler.offer(sequence, len(sequence.tokens), chain(*ahead, 5))
            run(scheduler)
        outputs.append(sequence.tokens[1:])
    assert sequence.accepted > 0
    assert outputs[0] == outputs[1]


def test_a_handoff_fills_pages_and_then_decodes() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(100, output=3, remote=True)
    scheduler.add(sequence)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert plan.entries == ()
    assert plan.filling == (sequence,)
    assert (sequence.state, sequence.holdings.end) == (State.FILLING, 2)
    assert scheduler.schedule(0.0) is None
    scheduler.join(sequence, 7)
    plan, result = run(scheduler)
    assert list(plan.step.positions) == [100]
    assert result.advances[0].index == 1
    assert finish(scheduler, sequence) == [7, *expected(7, 2)]
    assert scheduler.pool.used == 0


def test_a_second_handoff_asks_only_for_what_is_not_resident() -> None:
    scheduler = make_scheduler()
    first, second = (make_sequence(100, output=2, remote=True) for _ in range(2))
    for sequence, resident in ((first, 0), (second, 64)):
        scheduler.add(sequence)
        scheduler.schedule(0.0)
        assert sequence.computed == resident
        scheduler.join(sequence, 7)
        finish(scheduler, sequence)


def test_a_cancelled_handoff_leaves_its_pages_in_quarantine() -> None:
    scheduler = make_scheduler(pages=2)
    sequence = make_sequence(100, remote=True)
    scheduler.add(sequence)
    scheduler.schedule(0.0)
    pages = scheduler.quarantine(sequence)
    assert sorted(pages) == [0, 1]
    assert scheduler.pool.available == 0
    with pytest.raises(IntegrityError, match="gone"):
        scheduler.join(sequence, 7)
    scheduler.pool.end_quarantine(pages)
    assert scheduler.pool.used == 0


def test_a_commit_for_pages_that_changed_hands_is_refused() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(100, remote=True)
    scheduler.add(sequence)
    scheduler.schedule(0.0)
    scheduler.pool.tags.change(int(sequence.holdings.pages[0, 1]))
    with pytest.raises(IntegrityError, match="changed hands"):
        scheduler.join(sequence, 7)


def test_a_reused_page_aborts_the_request_that_refers_to_it_and_no_other() -> None:
    scheduler = make_scheduler()
    good, bad = make_sequence([1], name="good"), make_sequence([2], name="bad")
    scheduler.add(good)
    scheduler.add(bad)
    run(scheduler)
    scheduler.pool.tags.change(int(bad.holdings.pages[0, 0]))  # as if it had been freed and taken by another
    plan = scheduler.schedule(0.0)
    assert plan is not None
    (failure,) = scheduler.check(plan)
    assert failure.sequence is bad
    assert isinstance(failure.error, IntegrityError)
    assert bad.state is State.GONE
    assert finish(scheduler, good) == expected(1, 8)


def test_held_pages_stay_until_they_are_released() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(100, output=1, hold=True)
    scheduler.add(sequence)
    run(scheduler)
    assert (sequence.state, scheduler.pool.used, scheduler.idle) == (State.HELD, 2, True)
    scheduler.abort(sequence)
    assert scheduler.pool.used == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_abort_frees_everything_in_any_state(steps: int) -> None:
    scheduler = make_scheduler(step_tokens=50)
    sequence = make_sequence(100)
    scheduler.add(sequence)
    for _ in range(steps):
        run(scheduler)
    scheduler.abort(sequence)
    scheduler.abort(sequence)
    assert (scheduler.idle, scheduler.pool.used, sequence.state) == (True, 0, State.GONE)
    scheduler.pool.check()


def test_a_failed_step_ends_its_sequences_only() -> None:
    from paceline.contracts.errors import InternalError

    scheduler = make_scheduler(sequences=1)
    doomed, later = make_sequence([1], name="doomed"), make_sequence([2], name="later", arrival=1)
    scheduler.add(doomed)
    scheduler.add(later)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    result = scheduler.fail(plan, InternalError("no"))
    assert [f.sequence for f in result.failures] == [doomed]
    assert finish(scheduler, later) == expected(2, 8)


def test_the_same_step_twice_gives_the_same_arrays() -> None:
    plans = []
    for _ in range(2):
        scheduler = make_scheduler()
        scheduler.add(make_sequence(70))
        plan = scheduler.schedule(0.0)
        assert plan is not None
        plans.append(plan)
        logits_of(plan)
    for name in (
        "tokens",
        "positions",
        "slots",
        "parents",
        "query_starts",
        "contexts",
        "page_table",
        "logit_rows",
    ):
        assert np.array_equal(getattr(plans[0].step, name), getattr(plans[1].step, name))

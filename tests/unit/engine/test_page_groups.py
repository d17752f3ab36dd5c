"""Sequences whose window or chunk layers give pages back, on an engine whose answer depends on every KV byte that a row
sees and on no other: whatever is free is poisoned before every step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.hashing import group_key, pages_for
from paceline.contracts.messages import CachedTokens, TokenTree
from paceline.engine.fake import FakeEngine
from paceline.engine.plan import Plan, build_moves
from paceline.engine.scheduler import Limits, Scheduler
from paceline.engine.sequence import Sequence, State
from paceline.engine.step import Float32
from paceline.model.config import Chunk, Span, Window
from tests.builders import make_pool, make_sequence

SPANS = [Window(1), Window(100), Window(128), Chunk(64), Chunk(160)]
spans = pytest.mark.parametrize("span", SPANS, ids=str)


class Running:
    """Scheduler and engine, step by step."""

    def __init__(self, span: Span, *, pages: int = 64, step_tokens: int = 100, sequences: int = 16) -> None:
        self.engine = FakeEngine(span=span, context=2048)
        self.memory = np.zeros((pages, self.engine.layout.page_bytes), dtype=np.uint8)
        self.engine.bind(self.memory)
        self.pool = make_pool(pages)
        limits = Limits(step_tokens, sequences)
        groups = self.engine.layout.groups
        self.scheduler = Scheduler(self.pool, groups, vocab=512, context=2048, limits=limits)
        self.most_held: dict[Sequence, int] = {}

    def add(self, prompt: list[int], output: int = 8, **options: object) -> Sequence:
        sequence = make_sequence(prompt, output=output, groups=2, **options)  # type: ignore[arg-type]
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        self.memory[self.pool._free] = 0xEE
        plan = self.scheduler.schedule(0.0)
        assert plan is not None
        assert self.scheduler.check(plan) == []
        for entry in plan.entries:
            held = len(entry.sequence.holdings.of(1))
            self.most_held[entry.sequence] = max(held, self.most_held.get(entry.sequence, 0))
        result = self.scheduler.commit(plan, self.engine.execute(plan.step), _greedy, 0.0)
        if result.moves.size:
            self.engine.execute(build_moves(result.moves))
        self.pool.check()
        assert self.scheduler.allocator.spare >= 0
        return plan

    def evict(self, *keys: bytes) -> None:
        """Forget the cached pages of these keys."""
        gone = {self.pool.find(key) for key in keys}
        others = [page for page in self.pool._cached if page not in gone]
        self.pool.acquire(others)
        self.pool.release(self.pool.allocate(self.pool.available))
        self.pool.release(others)

    def finish(self, *sequences: Sequence) -> None:
        while any(s.finish_reason is None for s in sequences):
            self.step()
        for s in sequences:
            assert s.tokens[s.prompt_tokens :] == self.engine.greedy(
                s.tokens[: s.prompt_tokens], s.output_tokens
            )


def _greedy(row: Float32, sequence: Sequence, position: int) -> int:
    return int(row.argmax())


def prompt(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(1, 512, count).tolist()
    return tokens


@spans
def test_the_answer_is_that_of_a_single_loop_and_everything_comes_back(span: Span) -> None:
    running = Running(span)
    running.finish(*(running.add(prompt(n, n), output=90) for n in (1, 63, 64, 65, 300)))
    assert (running.pool.used, running.scheduler.allocator.spare) == (0, 64)


def test_a_long_prompt_holds_only_what_its_windows_show() -> None:
    running = Running(Window(100))
    sequence = running.add(prompt(1500))
    running.step()
    # All of the full group, and of the window what positions 0..99 lie in; 1 is the first that position 100 sees.
    assert [sequence.holdings.starts, sequence.holdings.ends] == [[0, 0], [24, 2]]
    running.step()
    assert [sequence.holdings.starts, sequence.holdings.ends] == [[0, 1], [24, 4]]
    running.finish(sequence)
    assert running.most_held[sequence] <= 5


@spans
def test_a_page_table_is_0_where_pages_were_given_back(span: Span) -> None:
    running = Running(span, pages=40)
    spare = running.pool.allocate(1)  # page 0, so that 0 is nobody's
    sequence = running.add(prompt(500), output=30)
    while sequence.finish_reason is None:
        start = running.engine.layout.groups[1].first_page(sequence.computed)
        plan = running.step()
        stop = pages_for(int(plan.step.contexts[0]))
        window = plan.step.page_table[1, 0]
        assert [i for i, page in enumerate(window) if page] == list(range(start, stop))
    running.pool.release(spare)
    assert running.pool.used == 0


@spans
def test_a_prefix_is_reused_when_every_group_has_what_the_next_row_sees(span: Span) -> None:
    running = Running(span)
    cold = running.add(prompt(200), output=70)
    running.finish(cold)
    warm = running.add([*cold.tokens, 1, 2, 3])
    running.finish(warm)
    assert warm.cached == CachedTokens(device=256)
    # Without the last page of the window the prefix is shorter, and the answer the same.
    running.evict(group_key(cold.hashes[3], 1))
    needed = running.engine.layout.groups[1].first_page(256) < 4
    again = running.add([*cold.tokens, 1, 2, 4])
    running.finish(again)
    assert again.cached == CachedTokens(device=192 if needed else 256)


@spans
def test_drafts_are_verified_without_a_trace(span: Span) -> None:
    running = Running(span)
    sequence = running.add(prompt(50), output=120)
    answer = running.engine.greedy(prompt(50), 120)
    while sequence.finish_reason is None:
        running.step()
        a, b, c = [*answer[sequence.output_tokens :], 0, 0, 0][:3]
        # A wrong branch before the right one, so that what is accepted has to be moved.
        tree = TokenTree(tokens=[a ^ 1, a, 7, b, c], parents=[-1, -1, 1, 1, 3])
        running.scheduler.offer(sequence, len(sequence.tokens), tree)
    assert sequence.tokens[50:] == answer
    assert sequence.accepted >= 60
    assert running.pool.used == 0


@spans
def test_preempted_sequences_are_recomputed_to_the_same_answer(span: Span) -> None:
    running = Running(span, pages=12)
    sequences = [running.add(prompt(100, n), output=150, arrival=n) for n in range(3)]
    preempted = False
    while sequences[0].finish_reason is None:
        running.step()
        preempted |= any(s.state is State.WAITING and s.output_tokens for s in sequences)
    assert preempted
    running.finish(*sequences)
    assert running.pool.used == 0


def test_an_admitted_prompt_never_waits_for_another_one() -> None:
    """Each is admitted before the longer ones are done, as far as the pool has what all of them still need."""
    running = Running(Window(128), pages=36, step_tokens=64)
    sequences = []
    for n in (600, 500, 400, 300):
        sequences.append(running.add(prompt(n, n), output=1, hold=True))
        running.step()
    states = [s.state for s in sequences]
    assert states == [State.RUNNING, State.RUNNING, State.WAITING, State.RUNNING]
    while any(s.state is not State.HELD for s in sequences):
        while any(s.state is State.RUNNING for s in sequences):
            assert running.step().entries
        for s in sequences:
            if s.state is State.HELD:
                running.scheduler.abort(s)
        sequences = [s for s in sequences if s.state is not State.GONE]
        if sequences:
            running.step()
    assert running.pool.used == 0


def test_what_is_shared_does_not_count_as_kept_for_those_who_share_it() -> None:
    """Both forks hold the same 16 pages of the window at first, and either needs as many of its own in the end."""
    running = Running(Window(1024), pages=66, step_tokens=64)
    stem = prompt(1024)
    running.finish(running.add(stem, output=1))
    first = running.add(stem + prompt(1000, 1), output=1, hold=True, arrival=1)
    running.step()
    second = running.add(stem + prompt(500, 2), output=1, hold=True)
    while first.state is not State.HELD:
        assert running.step().entries
    assert second.state is State.WAITING
    running.scheduler.abort(first)
    running.finish(second)
    assert second.cached == CachedTokens(device=1024)


def test_a_decoding_sequence_takes_no_page_that_is_promised() -> None:
    running = Running(Window(128), pages=16, step_tokens=64)
    old = running.add(prompt(63, 1), output=30)
    running.step()
    new = running.add(prompt(640, 2), output=1, arrival=1)
    running.step()
    assert new.state is State.RUNNING  # 10 pages are its own and 4 promised; `old` has the rest
    while old.computed < 65:
        running.step()
    assert (old.state, new.holdings.end) == (State.RUNNING, 0)
    running.finish(old, new)


def test_drafts_at_the_end_of_a_prompt_take_no_page_that_is_promised() -> None:
    running = Running(Window(32), pages=19, step_tokens=63)
    long = running.add(prompt(640, 1), output=1, arrival=1)
    running.step()
    short = running.add(prompt(190, 2), output=20)
    for _ in range(3):
        running.step()
    assert (short.remaining, running.scheduler.allocator.spare) == (1, 0)
    running.scheduler.offer(short, 190, TokenTree(tokens=[1, 2, 3], parents=[-1, 0, 1]))
    plan = running.step()
    assert [(e.sequence, e.rows) for e in plan.entries] == [(short, 1), (long, 62)]
    running.finish(short, long)


def test_an_early_prompt_leaves_room_for_the_largest_one_besides_what_is_promised() -> None:
    engine = FakeEngine(span=Window(64))
    scheduler = Scheduler(
        make_pool(15), engine.layout.groups, vocab=512, context=256, limits=Limits(step_tokens=64)
    )
    scheduler.add(make_sequence(prompt(250), output=1, groups=2))
    assert scheduler.schedule(0.0) is not None
    early = make_sequence(prompt(30), output=1, groups=2, early=True)
    scheduler.add(early)
    assert (scheduler.pool.available, scheduler.allocator.spare) == (10, 8)
    scheduler.schedule(0.0)
    assert scheduler.waiting == 1
    scheduler.expect(early)
    scheduler.schedule(0.0)
    assert scheduler.waiting == 0


def test_whoever_leaves_takes_its_promise_along() -> None:
    running = Running(Window(100), pages=40)
    sequence = running.add(prompt(1000))
    running.step()
    running.scheduler.abort(sequence)
    assert (running.pool.used, running.scheduler.allocator.spare) == (0, 40)


@pytest.mark.parametrize("length", [65, 250])
def test_a_page_that_is_copied_for_a_moment_is_waited_for(length: int) -> None:
    running = Running(Window(64), pages=8, step_tokens=64)
    sequence = running.add(prompt(length), output=1, hold=True)
    running.step()
    borrowed = running.pool.allocate(running.pool.available)  # as a copy from the kvstore does
    assert running.scheduler.schedule(0.0) is None
    assert sequence.state is State.RUNNING
    running.pool.release(borrowed)
    running.finish(sequence)


@spans
def test_a_handoff_takes_what_the_first_decoded_row_sees(span: Span) -> None:
    running = Running(span)
    nobodys = running.pool.allocate(1)  # page 0, which a 0 in the table must not be taken for
    tokens = prompt(400)
    first = running.engine.layout.groups[1].first_page(400)
    sequence = running.add(tokens, output=30, remote=True)
    plan = running.scheduler.schedule(0.0)
    assert plan is not None
    assert plan.filling == (sequence,)
    assert [sequence.holdings.starts, sequence.holdings.ends] == [[0, first], [7, 7]]
    writer = Running(span)  # the prefill worker
    source = writer.add(tokens, output=1, hold=True)
    writer.finish(source)
    for g, i in [(0, i) for i in range(7)] + [(1, i) for i in range(first, 7)]:
        page = writer.memory[source.holdings.pages[g, i]]
        running.memory[sequence.holdings.pages[g, i]] = page
    running.scheduler.join(sequence, source.tokens[-1])
    running.finish(sequence)
    running.pool.release(nobodys)
    assert running.pool.used == 0
    stored = [running.pool.find(group_key(h, 1)) is not None for h in sequence.hashes]
    assert stored == [False] * first + [True] * (6 - first)


def test_a_handoff_leaves_out_resident_pages_and_quarantines_the_others() -> None:
    running = Running(Window(100))
    turn = running.add(prompt(200), output=1)
    running.finish(turn)
    running.evict(*(group_key(h, 1) for h in turn.hashes))  # it is not what a row at 300 sees
    sequence = running.add(prompt(200) + prompt(100, 1), remote=True)
    plan = running.scheduler.schedule(0.0)
    assert plan is not None
    assert sequence.computed == 192
    assert [sequence.holdings.starts, sequence.holdings.ends] == [[0, 3], [5, 5]]
    pages = running.scheduler.quarantine(sequence)
    assert len(pages) == 4
    assert running.pool.quarantined == 4
    running.pool.end_quarantine(pages)
    assert running.pool.used == 0


def test_a_stale_page_of_any_group_aborts_its_sequence_and_no_other() -> None:
    running = Running(Window(100))
    good, bad = running.add(prompt(300, 1), name="good"), running.add(prompt(300, 2), name="bad")
    for _ in range(7):
        running.step()
    running.pool.tags.change(bad.holdings.of(1)[-1])
    plan = running.scheduler.schedule(0.0)
    assert plan is not None
    (failure,) = running.scheduler.check(plan)
    assert failure.sequence is bad
    running.finish(good)


@given(data=st.data(), span=st.sampled_from(SPANS), pages=st.integers(16, 40))
@settings(max_examples=25, deadline=None)
def test_any_traffic_ends_with_right_answers_and_an_idle_pool(
    data: st.DataObject, span: Span, pages: int
) -> None:
    running = Running(span, pages=pages, step_tokens=data.draw(st.integers(20, 150)))
    stems = [prompt(n, n) for n in (70, 150, 256)]
    lengths = st.integers(0, min(150, running.scheduler.room - 256 - 60))
    live: list[Sequence] = []
    for n in range(data.draw(st.integers(1, 8))):
        stem = data.draw(st.sampled_from(stems))
        output = data.draw(st.integers(1, 50))
        live.append(running.add(stem + prompt(data.draw(lengths) + 1, n), output, name=str(n), arrival=n))
        for _ in range(data.draw(st.integers(0, 4))):
            if not running.scheduler.idle:
                running.step()
        if data.draw(st.integers(0, 9)) == 0:
            running.scheduler.abort(live.pop())
    running.finish(*live)
    assert (running.pool.used, running.scheduler.allocator.spare) == (0, pages)

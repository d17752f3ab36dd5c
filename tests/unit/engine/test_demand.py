"""How many pages a sequence can need, against what it holds when it runs."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.hashing import pages_for
from paceline.engine.demand import Demand
from paceline.engine.layout import PageGroup
from paceline.model.config import Chunk, Span, Window

FULL = PageGroup(())


def held(group: PageGroup, computed: int, rows: int) -> int:
    return pages_for(computed + rows) - group.first_page(computed)


@given(
    span=st.one_of(st.integers(1, 300).map(Window), st.integers(1, 300).map(Chunk)),
    step_tokens=st.integers(1, 200),
    tokens=st.integers(1, 1000),
)
def test_no_chunk_holds_more_than_the_demand(span: Span, step_tokens: int, tokens: int) -> None:
    group = PageGroup((), span)
    demand = Demand([FULL, group], step_tokens)
    most = max(held(group, c, min(step_tokens, tokens - c)) for c in range(tokens))
    assert most <= demand.moving(tokens) <= pages_for(tokens)
    assert demand.most(tokens) == pages_for(tokens) + demand.moving(tokens)
    if isinstance(span, Window) and tokens >= span.size + step_tokens + 128:
        assert demand.moving(tokens) == most


def test_one_group_needs_a_page_per_64_positions() -> None:
    demand = Demand([FULL], 256)
    assert [demand.most(n) for n in (0, 1, 64, 65, 4096)] == [0, 1, 1, 2, 64]
    assert demand.room(64, 100_000) == 4096
    assert demand.room(64, 1000) == 1000


@given(pages=st.integers(0, 60), context=st.integers(1, 5000), size=st.integers(1, 500))
def test_room_is_the_longest_sequence_that_fits(pages: int, context: int, size: int) -> None:
    demand = Demand([FULL, PageGroup((), Window(size)), FULL], 100)
    room = demand.room(pages, context)
    assert room <= context
    assert demand.most(room) <= pages
    assert room == context or demand.most(room + 1) > pages


def test_windows_alone_have_room_for_any_context() -> None:
    demand = Demand([PageGroup((), Window(64))], 64)
    assert demand.room(3, 1_000_000) == 1_000_000
    assert demand.room(2, 1_000_000) == 128

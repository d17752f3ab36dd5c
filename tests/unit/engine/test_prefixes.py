"""The longest reusable prefix, against trying all of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.layout import PageGroup
from paceline.engine.prefixes import longest_prefix
from paceline.model.config import Chunk, Window

spans = st.one_of(st.none(), st.integers(1, 400).map(Window), st.integers(1, 400).map(Chunk))
groups_of = st.lists(spans.map(lambda span: PageGroup((), span)), min_size=1, max_size=4)


@given(
    groups=groups_of,
    most=st.integers(0, 12),
    absent=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 11)), max_size=12),
    behind=st.none() | st.integers(0, 200),
)
def test_every_group_has_what_the_next_row_sees(
    groups: list[PageGroup], most: int, absent: set[tuple[int, int]], behind: int | None
) -> None:
    asked: Counter[tuple[int, int]] = Counter()
    position = None if behind is None else most * 64 + behind

    def has(g: int, i: int) -> bool:
        asked[g, i] += 1
        return (g, i) not in absent

    def good(n: int) -> bool:
        row = n * 64 if position is None else position
        return not any(
            (g, i) in absent for g, group in enumerate(groups) for i in range(group.first_page(row), n)
        )

    assert longest_prefix(groups, most, has, position) == max(n for n in range(most + 1) if good(n))
    assert max(asked.values(), default=0) <= 1


def test_a_window_needs_only_its_last_pages() -> None:
    groups = [PageGroup(()), PageGroup((), Window(100))]
    here = {(0, i) for i in range(9)} | {(1, 3), (1, 4), (1, 7)}
    # A row at 5 * 64 sees 221 and on; pages 7 and 6 would be needed at 8 * 64.
    assert longest_prefix(groups, 9, lambda g, i: (g, i) in here) == 5
    assert longest_prefix(groups, 9, lambda g, i: (g, i) in here, position=8 * 64 + 63) == 8

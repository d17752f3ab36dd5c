"""How much of a prompt need not be computed again, when every page group keeps another stretch of it."""

from collections.abc import Callable, Sequence

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import PageGroup


def longest_prefix(
    groups: Sequence[PageGroup], most: int, has: Callable[[int, int], bool], position: int | None = None
) -> int:
    """The most pages n <= `most` of a prefix behind which a row at `position` finds all that it sees.

    Without `position` that is the row right behind the prefix, at n * PAGE_TOKENS. `has(g, i)` says whether page i of
    group g is there; no page is asked for twice.
    """
    full = [g for g, group in enumerate(groups) if group.span is None]
    n = 0 if full else most
    while n < most and all(has(g, n) for g in full):
        n += 1
    found = {
        g: n for g, group in enumerate(groups) if group.span is not None
    }  # pages [found[g], n) are there
    changed = True
    while changed:
        changed = False
        for g in found:
            first = groups[g].first_page(n * PAGE_TOKENS if position is None else position)
            i = min(found[g], n)
            while i > first and has(g, i - 1):
                i -= 1
            found[g] = i
            if i > first:  # Page i - 1 is missing, and every longer prefix needs it too.
                n, changed = i - 1, True
    return n

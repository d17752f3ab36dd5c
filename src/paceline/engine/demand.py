"""How many pages a sequence can need, known before it runs."""

from bisect import bisect_right
from collections.abc import Sequence

from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.layout import PageGroup


class Demand:
    """Of sequences in `groups` that run in steps of at most `step_tokens` rows."""

    def __init__(self, groups: Sequence[PageGroup], step_tokens: int) -> None:
        self._full = sum(group.span is None for group in groups)
        # The rows of a step and what the first one sees: so many positions touch so many pages, wherever they begin.
        self._spans = [
            pages_for(group.span.size + step_tokens - 2) + 1 for group in groups if group.span is not None
        ]

    def lasting(self, tokens: int) -> int:
        """Pages that hold `tokens` positions in the groups that keep them all."""
        return self._full * pages_for(tokens)

    def moving(self, tokens: int) -> int:
        """Pages that the groups with a span hold at most at a time, while `tokens` positions are computed."""
        return sum(min(pages_for(tokens), most) for most in self._spans)

    def most(self, tokens: int) -> int:
        """Pages that a sequence holds at most until it has `tokens` positions."""
        return self.lasting(tokens) + self.moving(tokens)

    def room(self, pages: int, context: int) -> int:
        """Positions that a sequence of at most `context` may have, alone in a pool of `pages`."""
        counts = range(pages_for(context) + 1)
        longest = bisect_right(counts, pages, key=lambda n: self.most(n * PAGE_TOKENS)) - 1
        return min(context, longest * PAGE_TOKENS)

"""The step of a batch that only decodes, carried on from step to step.

As long as the same sequences decode one token each, in the same pages, the next step differs from the last one in
numbers that count up by one and in its tokens. Making it anew costs little in a loop, but not behind a model whose
weights left no line of the cache: 200 us of a step of 3 ms, where this takes 50 us.
"""

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.plan import Plan


class Decoding:
    """The plans that follow `plan`, in which every sequence has one row and no draft."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._sequences = [entry.sequence for entry in plan.entries]
        self._tokens = plan.step.tokens.data
        # Rows of the page that is full first.
        self._left = min(-len(s.tokens) % PAGE_TOKENS for s in self._sequences)

    def advance(self) -> bool:
        """Make `plan`, which was committed, the next one. False, which changes nothing, where a page is full."""
        if self._left == 0:
            return False
        self._left -= 1
        for row, sequence in enumerate(self._sequences):
            self._tokens[row] = sequence.tokens[-1]
        step = self.plan.step
        for counter in (step.positions, step.contexts, step.slots):
            counter += 1
        return True

"""Which tokens the rows of a step may become, where sequences are held to a grammar.

A draft row is masked by the grammar's state behind its ancestors. A draft that the grammar forbids needs no mask: its
parent's mask excludes it, so that nobody looks at what follows.
"""

from collections import defaultdict
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from paceline.contracts.messages import TokenTree
from paceline.engine import drafts
from paceline.engine.step import Int32


class Constraint(Protocol):
    """What the output of one sequence may be, and how far it has come. For one thread at a time."""

    @property
    def ended(self) -> bool:
        """The output is whole, and nothing may follow."""

    @property
    def error(self) -> str | None:
        """Why it cannot go on, such as a bound of the grammar's library; then nothing may follow either."""

    def take(self, token: int) -> bool:
        """Whether `token` may come next; then it is part of the output."""

    def take_back(self) -> None:
        """Undo the last `take`."""

    def fill(self, mask: Int32) -> None:
        """Set `mask` to what may come next: bit i % 32 of word i / 32 is that of token i."""

    def forced(self) -> list[int]:
        """The tokens that have to come next, as far as there is no choice."""


class Constrained(msgspec.Struct, frozen=True, eq=False):
    """A constrained sequence's part of a step: wanted row number `row` is its own, those of `tree` follow."""

    constraint: Constraint
    row: int
    tree: TokenTree | None

    @property
    def most(self) -> int:
        return 1 if self.tree is None else 1 + len(self.tree.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """`bits` [C, ceil(vocab / 32)] are for the C wanted rows whose numbers are `rows`; others may become anything."""

    bits: Int32
    rows: list[int]


class Masking:
    """Makes the masks of one step after another in one piece of memory."""

    def __init__(self, vocab: int) -> None:
        self._bits: Int32 = np.empty((0, -(-vocab // 32)), dtype=np.int32)
        self._masks = Masks(self._bits, [])

    def of(self, constrained: Items[Constrained]) -> Masks | None:
        """The masks of a step, good until the next call; None where there are none. When they are for the same rows as
        those of the last call, they are the same object."""
        if not constrained:
            return None
        most = sum([one.most for one in constrained])
        if most > len(self._bits):
            self._bits = np.empty((most, self._bits.shape[1]), dtype=np.int32)
            self._masks = Masks(self._bits, [])
        rows: list[int] = []
        for one in constrained:
            self._add(one, rows)
        if rows != self._masks.rows:
            self._masks = Masks(self._bits[: len(rows)], rows)
        return self._masks

    def _add(self, one: Constrained, rows: list[int]) -> None:
        one.constraint.fill(self._bits[len(rows)])
        rows.append(one.row)
        if one.tree is not None:
            children: defaultdict[int, list[int]] = defaultdict(list)
            for node, parent in enumerate(one.tree.parents):
                children[parent].append(node)
            self._descend(one, one.tree, children, drafts.ROOT, rows)

    def _descend(
        self,
        one: Constrained,
        tree: TokenTree,
        children: defaultdict[int, list[int]],
        parent: int,
        rows: list[int],
    ) -> None:
        """Add the rows below `parent`, whose state the constraint is in and left in."""
        constraint = one.constraint
        for node in children[parent]:
            if not constraint.take(tree.tokens[node]):
                continue
            if not constraint.ended:
                constraint.fill(self._bits[len(rows)])
                rows.append(one.row + 1 + node)
                self._descend(one, tree, children, node, rows)
            constraint.take_back()


def permits(constraint: Constraint, token: int, vocab: int) -> bool:
    """Whether the constraint's own mask lets `token` come next."""
    mask = np.zeros(-(-vocab // 32), dtype=np.int32)
    constraint.fill(mask)
    return bool(allowed(mask, vocab)[token])


def allowed(mask: Int32, vocab: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A mask as booleans [vocab]."""
    return np.unpackbits(mask.view(np.uint8), count=vocab, bitorder="little").view(np.bool_)

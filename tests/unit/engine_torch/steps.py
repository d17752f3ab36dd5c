"""Steps by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.layout import PageGroup
from paceline.engine.step import Int64, Step

ONE_GROUP = (PageGroup(()),)


@dataclass(frozen=True)
class Rows:
    """The rows of one sequence: `tokens` follow `start` positions that have KV. `parents` index `tokens`.

    A page of `pages` stands for one page in each page group: those of page p are G * p to G * p + G - 1.
    """

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    parents: Sequence[int] = field(default_factory=tuple)
    positions: Sequence[int] = field(default_factory=tuple)

    def first_pages(self, groups: Sequence[PageGroup]) -> list[int]:
        """In each group the index of the first page that a row may still see."""
        first = self.positions[0] if self.positions else self.start
        return [group.first_page(first) for group in groups]

    def table(self, groups: Sequence[PageGroup]) -> Int64:
        """The pages of each group, [G, pages]; 0 for those that are no longer needed."""
        pages = np.array(self.pages) * len(groups) + np.arange(len(groups))[:, None]
        for row, first in zip(pages, self.first_pages(groups), strict=True):
            row[:first] = 0
        return pages


def make_step(
    *sequences: Rows, moves: Sequence[tuple[int, int]] = (), groups: Sequence[PageGroup] = ONE_GROUP
) -> Step:
    """A step that wants the logits of every row. `moves` are slots of `Rows.pages`."""
    starts = np.cumsum([0, *(len(s.tokens) for s in sequences)])
    tables = np.zeros((len(groups), len(sequences), max(len(s.pages) for s in sequences)), dtype=np.int32)
    slots, parents, positions = [], [], []
    for i, (first, s) in enumerate(zip(starts.tolist(), sequences, strict=False)):
        index = np.arange(s.start, s.start + len(s.tokens))
        tables[:, i, : len(s.pages)] = s.table(groups)
        slots.append(tables[:, i, index // 64].astype(np.int64) * 64 + index % 64)
        parents += [p if p < 0 else p + first for p in s.parents or [-1] * len(s.tokens)]
        positions += list(s.positions or index)
    moved = np.array(moves, dtype=np.int64).reshape(1, -1, 2)
    group = np.arange(len(groups))[:, None, None]
    return Step(
        tokens=np.array([t for s in sequences for t in s.tokens], dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slots=np.concatenate(slots, axis=1),
        parents=np.array(parents, dtype=np.int32),
        query_starts=starts.astype(np.int32),
        contexts=np.array([s.start + len(s.tokens) for s in sequences], dtype=np.int32),
        page_table=tables,
        logit_rows=np.arange(starts[-1], dtype=np.int32),
        moves=(moved // 64 * len(groups) + group) * 64 + moved % 64,
    )

"""The page tables of the sequences that decode together, kept from step to step.

Most sequences of a step were in the one before and hold the same pages as then: only rows that changed are written.
"""

from collections.abc import Sequence

import numpy as np

from paceline.engine.holdings import Holdings
from paceline.engine.pages import NO_TAG, Tags
from paceline.engine.step import Int32


class PageTables:
    """Row s of the tables is what the s-th sequence of the last step held."""

    def __init__(self, groups: int) -> None:
        self._pages = np.zeros((groups, 0, 0), dtype=np.int32)
        self._tags = np.zeros((groups, 0, 0), dtype=np.uint64)
        self._stamps: list[int] = []
        self._width = 0

    @property
    def groups(self) -> int:
        return len(self._pages)

    def of(self, holdings: Sequence[Holdings]) -> tuple[Int32, Tags]:
        """(pages, their tags), both [groups, len(holdings), pages of the longest], 0 and `NO_TAG` where none is
        held."""
        stamps = [held.stamp for held in holdings]
        if stamps != self._stamps:
            self._update(holdings, stamps)
        part = np.s_[:, : len(holdings), : self._width]
        return self._pages[part].copy(), self._tags[part].copy()

    def _update(self, holdings: Sequence[Holdings], stamps: list[int]) -> None:
        ends = [held.end for held in holdings]
        self._width = max(ends, default=0)
        self._make_room(len(holdings), self._width)
        for row, (held, end, stamp) in enumerate(zip(holdings, ends, stamps, strict=True)):
            if row < len(self._stamps) and self._stamps[row] == stamp:
                continue
            self._pages[:, row, :end] = held.pages[:, :end]
            self._tags[:, row, :end] = held.tags[:, :end]
            self._pages[:, row, end:] = 0
            self._tags[:, row, end:] = NO_TAG
        self._stamps = stamps

    def _make_room(self, rows: int, width: int) -> None:
        groups, most_rows, most_width = self._pages.shape
        if rows <= most_rows and width <= most_width:
            return
        shape = (groups, max(rows, 2 * most_rows), max(width, 2 * most_width))
        self._pages = np.zeros(shape, dtype=np.int32)
        self._tags = np.zeros(shape, dtype=np.uint64)
        self._stamps = []

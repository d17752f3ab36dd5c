"""The pages that one sequence holds, by group and place in the sequence."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.contracts.messages import PageRef
from paceline.engine.layout import PageGroup
from paceline.engine.pages import Tags, TagTracker
from paceline.engine.step import Int64

Place: TypeAlias = tuple[int, int]
"""(group, page of the sequence): where a page belongs."""


class Holdings:
    """Of group g the pages [starts[g], ends[g]) of the sequence; the arrays are 0 elsewhere.

    pages    int32  [groups, pages of the longest sequence]
    tags     uint64 [groups, ...], the tag that each page bore when it was taken
    """

    __slots__ = ("ends", "pages", "starts", "tags")

    def __init__(self, groups: int, pages: int) -> None:
        self.pages = np.zeros((groups, pages), dtype=np.int32)
        self.tags = np.zeros((groups, pages), dtype=np.uint64)
        self.starts = [0] * groups
        self.ends = [0] * groups

    @property
    def end(self) -> int:
        return max(self.ends)

    @property
    def capacity(self) -> int:
        """Positions below this have pages in every group, or are not seen any more."""
        return min(self.ends) * PAGE_TOKENS

    def begin(self, group: int, start: int) -> None:
        """The first page that is taken for `group` is page `start` of the sequence."""
        self.starts[group] = self.ends[group] = start

    def take(self, group: int, pages: Sequence[int], tracker: TagTracker) -> None:
        """Append `pages`, which the sequence holds from now on."""
        start, end = self.ends[group], self.ends[group] + len(pages)
        self.pages[group, start:end] = pages
        self.tags[group, start:end] = [tracker.tag(page) for page in pages]
        self.ends[group] = end

    def drop(self, group: int, start: int) -> list[int]:
        """Hold nothing before page `start` any more; the pages that this concerns."""
        old = slice(self.starts[group], start)
        pages: list[int] = self.pages[group, old].tolist()
        self.pages[group, old] = 0
        self.tags[group, old] = 0
        self.starts[group] = start
        return pages

    def clear(self) -> None:
        self.pages[:, : self.end] = 0
        self.tags[:, : self.end] = 0
        self.starts = [0] * len(self.starts)
        self.ends = [0] * len(self.ends)

    def of(self, group: int) -> list[int]:
        """The pages of one group."""
        pages: list[int] = self.pages[group, self.starts[group] : self.ends[group]].tolist()
        return pages

    def between(self, start: int, stop: int) -> list[int]:
        """What is held of pages [start, stop) of the sequence, by page of it and then by group."""
        index = np.arange(start, stop)[:, None]
        held = (index >= self.starts) & (index < self.ends)
        pages: list[int] = self.pages[:, start:stop].T[held].tolist()
        return pages

    def refs(self, places: Iterable[Place]) -> list[PageRef]:
        """The pages at these places, with their tags."""
        return [PageRef(int(self.pages[place]), int(self.tags[place])) for place in places]

    def slots(self, position: int) -> Int64:
        """Where the KV of `position` lies in each group; see `Step`."""
        pages = self.pages[:, position // PAGE_TOKENS].astype(np.int64)
        slots: Int64 = pages * PAGE_TOKENS + position % PAGE_TOKENS
        return slots


def live_pages(holdings: Sequence[Holdings]) -> tuple[Int64, Tags, npt.NDArray[np.int64]]:
    """(pages, their tags, the number of pages up to the end of each holdings), all concatenated."""
    parts = [(h, g, slice(h.starts[g], h.ends[g])) for h in holdings for g in range(len(h.ends))]
    pages = np.concatenate([h.pages[g, part] for h, g, part in parts]).astype(np.int64)
    tags = np.concatenate([h.tags[g, part] for h, g, part in parts])
    return pages, tags, np.cumsum([sum(h.ends) - sum(h.starts) for h in holdings])


def places_behind(groups: Sequence[PageGroup], prefix: int, tokens: int) -> list[Place]:
    """The places behind `prefix` pages that a row at position `tokens` needs, by page of the sequence and then by
    group: the order of pages in a handoff."""
    starts = [max(prefix, group.first_page(tokens)) for group in groups]
    return [(g, i) for i in range(prefix, pages_for(tokens)) for g, start in enumerate(starts) if i >= start]

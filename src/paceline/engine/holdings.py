"""The pages that one sequence holds, by group and place in the sequence."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import TypeAlias

import numpy as np

from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.contracts.messages import PageRef
from paceline.engine.layout import PageGroup
from paceline.engine.pages import Tags, TagTracker
from paceline.engine.step import Int64

Place: TypeAlias = tuple[int, int]
"""(group, page of the sequence): where a page belongs."""

_stamps = count()


class Holdings:
    """Of group g the pages [starts[g], ends[g]) of the sequence; the arrays are 0 elsewhere.

    pages    int32  [groups, pages of the longest sequence]
    tags     uint64 [groups, ...], the tag that each page bore when it was taken
    capacity positions below it have pages in every group, or are not seen any more
    stamp    another number after every change, and for every `Holdings`: who kept a copy knows whether it is still good
    """

    __slots__ = ("capacity", "ends", "pages", "stamp", "starts", "tags")

    def __init__(self, groups: int, pages: int) -> None:
        self.pages = np.zeros((groups, pages), dtype=np.int32)
        self.tags = np.zeros((groups, pages), dtype=np.uint64)
        self.starts = [0] * groups
        self.ends = [0] * groups
        self._changed()

    @property
    def end(self) -> int:
        return max(self.ends)

    def begin(self, group: int, start: int) -> None:
        """The first page that is taken for `group` is page `start` of the sequence."""
        self.starts[group] = self.ends[group] = start
        self._changed()

    def take(self, group: int, pages: Sequence[int], tracker: TagTracker) -> None:
        """Append `pages`, which the sequence holds from now on."""
        start, end = self.ends[group], self.ends[group] + len(pages)
        self.pages[group, start:end] = pages
        self.tags[group, start:end] = [tracker.tag(page) for page in pages]
        self.ends[group] = end
        self._changed()

    def drop(self, group: int, start: int) -> list[int]:
        """Hold nothing before page `start` any more; the pages that this concerns."""
        old = slice(self.starts[group], start)
        pages: list[int] = self.pages[group, old].tolist()
        self.pages[group, old] = 0
        self.tags[group, old] = 0
        self.starts[group] = start
        self._changed()
        return pages

    def clear(self) -> None:
        self.pages[:, : self.end] = 0
        self.tags[:, : self.end] = 0
        self.starts = [0] * len(self.starts)
        self.ends = [0] * len(self.ends)
        self._changed()

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

    def live(self) -> tuple[Int64, Tags]:
        """All pages that are held, by group, and their tags."""
        parts = [
            (g, slice(start, end)) for g, (start, end) in enumerate(zip(self.starts, self.ends, strict=True))
        ]
        pages = np.concatenate([self.pages[part] for part in parts]).astype(np.int64)
        return pages, np.concatenate([self.tags[part] for part in parts])

    def _changed(self) -> None:
        self.capacity = min(self.ends) * PAGE_TOKENS
        self.stamp = next(_stamps)


def places_behind(groups: Sequence[PageGroup], prefix: int, tokens: int) -> list[Place]:
    """The places behind `prefix` pages that a row at position `tokens` needs, by page of the sequence and then by
    group: the order of pages in a handoff."""
    starts = [max(prefix, group.first_page(tokens)) for group in groups]
    return [(g, i) for i in range(prefix, pages_for(tokens)) for g, start in enumerate(starts) if i >= start]

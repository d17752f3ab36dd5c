"""Which positions a row attends to, and how sequences are put together for it. Pure."""

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.step import Int32, Step

SHORT = 16
"""Sequences of at most so many rows are attended together: those that decode, or verify a draft. Longer chunks fill a
kernel alone, and their masks would be large."""


def group(step: Step) -> list[list[int]]:
    """The step's sequences by number of rows and, within a factor of two, of pages.

    Padding the shorter ones of a group thus at most doubles what is read. A chunk is a group of its own.
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    chunks = []
    rows = np.diff(step.query_starts).tolist()
    pages = (-(-step.contexts // PAGE_TOKENS)).tolist()
    for s in range(step.sequences):
        if rows[s] > SHORT:
            chunks.append([s])
        else:
            groups[rows[s], pages[s].bit_length()].append(s)
    return [*groups.values(), *chunks]


def visible(step: Step, members: list[int], positions: int) -> npt.NDArray[np.bool_]:
    """What the rows of the sequences `members` attend to: bool [members, rows, positions].

    All members have equally many rows; positions count slots in order, so that a draft row has one of its own.
    """
    starts, contexts = step.query_starts[members], step.contexts[members]
    rows = int(step.query_starts[members[0] + 1] - starts[0])
    last = contexts[:, None] - rows + np.arange(rows)
    seen: npt.NDArray[np.bool_] = np.arange(positions) <= last[:, :, None]
    parents = step.parents[starts[:, None] + np.arange(rows)] - starts[:, None]
    for b in np.flatnonzero((parents >= 0).any(axis=1)).tolist():
        drafts = int(np.count_nonzero(parents[b] >= 0))
        context = int(contexts[b])
        seen[b, rows - drafts :, context - drafts : context] = _ancestors(
            parents[b, rows - drafts :] - (rows - drafts)
        )
    return seen


def _ancestors(parents: Int32) -> npt.NDArray[np.bool_]:
    """Itself and its ancestors, of each draft: bool [drafts, drafts]. A parent below 0 is no draft."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[i] |= seen[parent]
    return seen

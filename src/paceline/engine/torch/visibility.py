"""Which positions a row attends to, and how sequences are put together for it. Pure."""

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.step import Int32, Int64, Step
from paceline.model.config import Chunk, Span, Window

Bools = npt.NDArray[np.bool_]

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


def visible(step: Step, members: list[int], columns: Int64, span: Span | None) -> Bools:
    """What the rows of the sequences `members` attend to: bool [members, rows, columns].

    All members have equally many rows. Column j stands for slot `columns[j]` in the order of the sequence, so that a
    draft row has one of its own.
    """
    starts, contexts = step.query_starts[members], step.contexts[members]
    rows = int(step.query_starts[members[0] + 1] - starts[0])
    own = starts[:, None] + np.arange(rows)
    last = contexts[:, None] - rows + np.arange(rows)
    seen: Bools = columns <= last[:, :, None]
    positions = np.broadcast_to(columns, (len(members), len(columns)))
    parents = step.parents[own] - starts[:, None]
    first = int(columns[0])
    for b in np.flatnonzero((parents >= 0).any(axis=1)).tolist():
        drafts = int(np.count_nonzero(parents[b] >= 0))
        begin = int(contexts[b]) - drafts - first
        seen[b, rows - drafts :, begin : begin + drafts] = _ancestors(
            parents[b, rows - drafts :] - (rows - drafts)
        )
        if span is not None:
            positions = positions.copy()
            positions[b, begin : begin + drafts] = step.positions[own[b, rows - drafts :]]
    return seen if span is None else seen & _within(span, step.positions[own], positions)


def _within(span: Span, rows: Int32, columns: Int64) -> Bools:
    """Whether a row at position [members, rows] looks back as far as each column's position [members, columns]."""
    within: Bools = columns[:, None, :] >= first_seen(rows, span)[:, :, None]
    return within


def first_seen(positions: Int32, span: Span | None) -> Int32:
    """The first position that each row may see."""
    match span:
        case None:
            return np.zeros_like(positions)
        case Window(size):
            return np.maximum(positions - (size - 1), 0)
        case Chunk(size):
            return positions - positions % size


def _ancestors(parents: Int32) -> Bools:
    """Itself and its ancestors, of each draft: bool [drafts, drafts]. A parent below 0 is no draft."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[i] |= seen[parent]
    return seen

"""What the rows of a step see, as the kernels are told it: worked out once, for all layers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from paceline.engine.step import Int32, Int64, Step
from paceline.engine.torch.kernels.rows import Rows
from paceline.engine.torch.upload import upload
from paceline.engine.torch.visibility import first_seen
from paceline.model.config import Span


def step_rows(step: Step, spans: Sequence[Span | None], device: torch.device) -> list[Rows]:
    """One for each of `spans`. A sequence has at most `kernels.rows.MAX_DRAFTS` drafts."""
    counts = np.diff(step.query_starts)
    owners = np.repeat(np.arange(step.sequences), counts)
    drafted = step.parents >= 0
    bases = step.contexts - np.bincount(owners[drafted], minlength=step.sequences).astype(np.int32)
    # The slot of a row, counted from the start of its sequence.
    places = np.arange(len(owners), dtype=np.int32) + (step.contexts - step.query_starts[1:])[owners]
    last = np.where(drafted, bases[owners] - 1, places)
    with_drafts = bool(drafted.any())
    bits = np.where(drafted, np.int64(1) << (places - bases[owners]).clip(0).astype(np.int64), 0)
    arrays: list[npt.NDArray[np.integer]] = [step.query_starts, step.contexts, last, bases]
    for span in spans:
        first = first_seen(step.positions, span)
        arrays += [first, _ancestors(step, drafted, bits, first)] if with_drafts else [first]
    query_starts, contexts, last_seen, draft_base, *rest = upload(arrays, device)
    rows = Rows(
        query_starts=query_starts,
        contexts=contexts,
        first=last_seen,
        last=last_seen,
        longest=int(counts.max(initial=0)),
        draft_base=draft_base if with_drafts else None,
    )
    if not with_drafts:
        return [replace(rows, first=first) for first in rest]
    return [
        replace(rows, first=first, ancestors=ancestors)
        for first, ancestors in zip(rest[::2], rest[1::2], strict=True)
    ]


def most_drafts(step: Step) -> int:
    """Of one sequence."""
    owners = np.repeat(np.arange(step.sequences), np.diff(step.query_starts))
    return int(np.bincount(owners[step.parents >= 0]).max(initial=0))


def part(step: Step, sequences: Int64) -> tuple[Step, Int64]:
    """What `step_rows` needs of a step of these sequences alone, and which rows are theirs."""
    counts = np.diff(step.query_starts)
    rows = np.flatnonzero(np.isin(np.repeat(np.arange(step.sequences), counts), sequences))
    place = np.full(len(step.parents), -1, dtype=np.int32)
    place[rows] = np.arange(len(rows))
    parents = step.parents[rows]
    return replace(
        step,
        positions=step.positions[rows],
        parents=np.where(parents >= 0, place[parents], -1),
        query_starts=np.concatenate([[0], np.cumsum(counts[sequences])]).astype(np.int32),
        contexts=step.contexts[sequences],
        page_table=step.page_table[:, sequences],
    ), rows


def _ancestors(step: Step, drafted: npt.NDArray[np.bool_], bits: Int64, first: Int32) -> Int64:
    """The bits of each draft and of its ancestors from position `first` on, int64 [T]; one pass for each generation."""
    seen = bits.copy()
    rows = np.flatnonzero(drafted)
    above = step.parents[rows]
    while (live := drafted[above]).any():
        rows, above = rows[live], above[live]
        seen[rows] |= np.where(step.positions[above] >= first[rows], bits[above], 0)
        above = step.parents[above]
    return seen

"""Steps by hand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.step import Step


@dataclass(frozen=True)
class Rows:
    """The rows of one sequence: `tokens` follow `start` positions that have KV. `parents` index `tokens`."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]
    parents: Sequence[int] = field(default_factory=tuple)
    positions: Sequence[int] = field(default_factory=tuple)


def make_step(*sequences: Rows, moves: Sequence[tuple[int, int]] = ()) -> Step:
    """A step that wants the logits of every row."""
    starts = np.cumsum([0, *(len(s.tokens) for s in sequences)])
    width = max(len(s.pages) for s in sequences)
    slots, parents, positions = [], [], []
    for first, s in zip(starts.tolist(), sequences, strict=False):
        index = np.arange(s.start, s.start + len(s.tokens))
        slots.append(np.array(s.pages)[index // 64] * 64 + index % 64)
        parents += [p if p < 0 else p + first for p in s.parents or [-1] * len(s.tokens)]
        positions += list(s.positions or index)
    return Step(
        tokens=np.array([t for s in sequences for t in s.tokens], dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slots=np.concatenate(slots).astype(np.int64)[None],
        parents=np.array(parents, dtype=np.int32),
        query_starts=starts.astype(np.int32),
        contexts=np.array([s.start + len(s.tokens) for s in sequences], dtype=np.int32),
        page_table=np.array([[[*s.pages, *[0] * (width - len(s.pages))] for s in sequences]], dtype=np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
        moves=np.array(moves, dtype=np.int64).reshape(1, -1, 2),
    )

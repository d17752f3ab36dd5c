"""A text in windows, run through an engine as prompts are: chunk by chunk, each over the pages of those before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.interface import Engine
from paceline.engine.step import Float32, Int32, Step

CHUNK = PAGE_TOKENS
"""Rows of a window in one step; those of the first one have nothing but each other, and are not scored."""
BATCH = 8
"""Windows that run at the same time."""
ROWS = BATCH * CHUNK
"""Rows of a step."""


def read_text(path: Path | None) -> str:
    """The text of `path`, by default the repository's prose."""
    if path is not None:
        return path.read_text(encoding="utf-8")
    root = Path(__file__).parents[1]
    return "\n\n".join(
        p.read_text()
        for p in [root / "README.md", root / "ARCHITECTURE.md", *sorted((root / "docs").rglob("*.md"))]
    )


def cut(tokens: list[int], length: int) -> Int32:
    """Windows [windows, length] of a text, whole ones only."""
    count = len(tokens) // length
    return np.array(tokens[: count * length], dtype=np.int32).reshape(count, length)


def chunk_step(chunk: Int32, start: int, length: int, groups: int, *, score: bool) -> Step:
    """The rows at positions `start` of windows of `length`; sequence s has its own pages in each page group."""
    count, rows = chunk.shape
    per_window = length // PAGE_TOKENS
    table = np.arange(groups * count * per_window, dtype=np.int32).reshape(groups, count, per_window)
    positions = np.tile(np.arange(start, start + rows), count)
    pages = table[:, np.repeat(np.arange(count), rows), positions // PAGE_TOKENS]
    total = count * rows
    return Step(
        tokens=chunk.reshape(-1),
        positions=positions.astype(np.int32),
        slots=pages.astype(np.int64) * PAGE_TOKENS + positions % PAGE_TOKENS,
        parents=np.full(total, -1, dtype=np.int32),
        query_starts=np.arange(0, total + 1, rows, dtype=np.int32),
        contexts=np.full(count, start + rows, dtype=np.int32),
        page_table=table,
        logit_rows=np.arange(total if score else 0, dtype=np.int32),
        moves=np.empty((groups, 0, 2), dtype=np.int64),
    )


@dataclass(frozen=True)
class Prediction:
    """Logits [n, rows, vocab] of a chunk of n windows and the tokens [n, rows] that follow; `windows` and `columns` are
    where these stand among the scored tokens of all windows, [windows, `scored`]."""

    windows: slice
    columns: slice
    logits: Float32
    following: Int32


def predict(engine: Engine, windows: Int32) -> Iterator[Prediction]:
    """What follows each scored row, always in the same order."""
    length = windows.shape[1]
    for first in range(0, len(windows), BATCH):
        batch = windows[first : first + BATCH]
        for start in range(0, length, CHUNK):
            chunk = batch[:, start : start + CHUNK]
            score = start > 0
            step = chunk_step(chunk, start, length, len(engine.layout.groups), score=score)
            logits = engine.execute(step)
            if score:
                # The last row of a window has no successor in it.
                following = batch[:, start + 1 : start + CHUNK + 1]
                rows = following.shape[1]
                yield Prediction(
                    slice(first, first + len(batch)),
                    slice(start - CHUNK, start - CHUNK + rows),
                    logits.reshape(len(batch), CHUNK, -1)[:, :rows],
                    following,
                )


def scored(length: int) -> int:
    """Tokens of a window whose prediction counts: those behind its first chunk."""
    return length - CHUNK - 1

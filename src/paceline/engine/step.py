"""What the scheduler asks of an engine in one step: flat arrays, no objects, no tensors.

T tokens of S sequences, concatenated; R rows of logits wanted. A page holds `PAGE_TOKENS` positions; slot
`page * PAGE_TOKENS + offset` is where the KV of one position lives, in each of the layout's G page groups another one.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
Float32: TypeAlias = npt.NDArray[np.float32]


def no_moves(groups: int = 1) -> Int64:
    return np.empty((groups, 0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Step:
    """One batch. Sequence s owns rows `query_starts[s]:query_starts[s + 1]`.

    A row attends to itself and to every position before it in its sequence. Draft rows (`parents >= 0`) are the
    exception: a draft row attends to the positions before its sequence's first draft row, to its ancestors and to
    itself. Its slot follows row order; its position is its depth in the tree, so siblings share a position.
    """

    tokens: Int32  # [T] ids
    positions: Int32  # [T] position in the sequence, for rotary embedding
    slots: Int64  # [G, T] where the row's KV is written
    parents: Int32  # [T] row of the parent for draft rows, else -1
    query_starts: Int32  # [S + 1]
    contexts: Int32  # [S] positions with KV once the step has run, draft rows included
    page_table: (
        Int32  # [G, S, max pages] of each sequence in order; 0 behind them and where one was given back
    )
    logit_rows: Int32  # [R] rows whose logits are wanted
    moves: Int64 = field(default_factory=no_moves)  # [G, M, 2] slots copied from -> to before anything else

    @property
    def sequences(self) -> int:
        return len(self.contexts)

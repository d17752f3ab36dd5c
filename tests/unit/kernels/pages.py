"""Pools of pages for the tests of attention: what no sequence may see is NaN."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.rows import Rows


@dataclass(frozen=True)
class Batch:
    """Sequences whose positions lie in a table of pages.

    counts, contexts: rows and positions of each sequence
    """

    counts: list[int]
    contexts: list[int]
    page_table: Tensor
    pages: int

    @classmethod
    def make(cls, *sequences: tuple[int, int]) -> "Batch":
        """Of (rows, context) each. Page 0 belongs to nobody; the others are handed out out of order."""
        counts, contexts = [list(numbers) for numbers in zip(*sequences, strict=True)]
        needed = [-(-context // PAGE_TOKENS) for context in contexts]
        free = (torch.randperm(sum(needed)) + 1).tolist()
        table = torch.zeros(len(sequences), max(needed), dtype=torch.int32)
        for s, n in enumerate(needed):
            table[s, :n] = torch.tensor([free.pop() for _ in range(n)])
        return cls(counts, contexts, table, sum(needed) + 1)

    @property
    def positions(self) -> Tensor:
        """int32 [T], of rows that are no drafts"""
        pairs = zip(self.counts, self.contexts, strict=True)
        return torch.cat([torch.arange(context - count, context) for count, context in pairs]).int()

    def causal(self) -> Rows:
        positions = self.positions
        return Rows(
            query_starts=torch.tensor([0, *self.counts]).cumsum(0).int(),
            contexts=torch.tensor(self.contexts).int(),
            first=torch.zeros_like(positions),
            last=positions,
            longest=max(self.counts),
        )

    def slots(self) -> Tensor:
        """int64 [positions of all sequences]: where each lies, sequence after sequence."""
        slots = []
        for s, context in enumerate(self.contexts):
            position = torch.arange(context)
            slots.append(
                self.page_table[s].long()[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
            )
        return torch.cat(slots)

    def dense_mask(self, rows: Rows) -> Tensor:
        """bool [T, positions of all sequences], by the definition in `Rows`."""
        mask = torch.zeros(rows.count, sum(self.contexts), dtype=torch.bool)
        begin = row = 0
        for s, (count, context) in enumerate(zip(self.counts, self.contexts, strict=True)):
            for t in range(row, row + count):
                for p in range(context):
                    mask[t, begin + p] = int(rows.first[t]) <= p <= int(rows.last[t])
                    if rows.ancestors is not None and rows.draft_base is not None:
                        bit = p - int(rows.draft_base[s])
                        mask[t, begin + p] |= bit >= 0 and bool(int(rows.ancestors[t]) >> bit & 1)
            begin, row = begin + context, row + count
        return mask


def fill(values: Tensor, slots: Tensor, plane: Tensor) -> None:
    """Write rows [n, heads, dim] into the slots of a plane [pages, heads, PAGE_TOKENS, dim]."""
    plane[slots // PAGE_TOKENS, :, slots % PAGE_TOKENS] = values.to(plane.dtype)


def windowed(rows: Rows, positions: Tensor, window: int) -> Rows:
    """The same rows where each sees itself and the `window - 1` positions before it, and all its ancestors.

    positions: int32 [T], the place of the row's token in its sequence, which sibling drafts share
    """
    return replace(rows, first=(positions - (window - 1)).clamp_(min=0))


def chunked(rows: Rows, positions: Tensor, chunk: int) -> Rows:
    """The same rows where each sees only the chunk of `chunk` positions that it lies in; of rows without drafts."""
    return replace(rows, first=positions - positions % chunk)


def with_drafts(batch: Batch, parents: list[list[int]]) -> Rows:
    """The batch's rows where the last ones of each sequence are drafts; -1 is a draft behind the last other row."""
    rows = batch.causal()
    last, ancestors = rows.last.clone(), torch.zeros(rows.count, dtype=torch.int64)
    bases = []
    for s, tree in enumerate(parents):
        bases.append(batch.contexts[s] - len(tree))
        first_draft = int(rows.query_starts[s + 1]) - len(tree)
        for i, parent in enumerate(tree):
            last[first_draft + i] = bases[s] - 1
            ancestors[first_draft + i] = (0 if parent < 0 else ancestors[first_draft + parent]) | (1 << i)
    return Rows(
        query_starts=rows.query_starts,
        contexts=rows.contexts,
        first=rows.first,
        last=last,
        longest=rows.longest,
        ancestors=ancestors,
        draft_base=torch.tensor(bases).int(),
    )

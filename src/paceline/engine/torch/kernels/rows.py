"""Which positions each query row of a step attends to."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS

MAX_DRAFTS = 63
"""Draft rows that a sequence may have in one step: bits of `Rows.ancestors`, but for the sign."""

_SHORT = 16


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences of equally many rows and, within a factor of two, equally long, which are attended together.

    members: int64 [n], the sequences
    rows: int64 [n, rows of each], which rows these are of the step
    positions: most positions that one of them has
    seen: bool [n, rows of each, positions]
    """

    members: Tensor
    rows: Tensor
    positions: int
    seen: Tensor


@dataclass(frozen=True)
class Rows:
    """T rows of S sequences, concatenated, and what each of them sees. Tensors lie on the device of the queries.

    Row t of sequence s sees position p if `first[t] <= p <= last[t]`, or if bit `p - draft_base[s]` of `ancestors[t]`
    is set. Positions count the slots of a sequence in order, so that each draft has one of its own from `draft_base`
    on; a draft row has `last = draft_base - 1`, and bits for itself and its ancestors.

    query_starts: int32 [S + 1]; sequence s owns rows query_starts[s] up to query_starts[s + 1]
    contexts: int32 [S], positions with KV, drafts included
    first, last: int32 [T], at least 0 and below the context
    ancestors: int64 [T], bit 63 clear; None when the step has no drafts
    draft_base: int32 [S]; None when the step has no drafts
    longest: most rows that one sequence has
    """

    query_starts: Tensor
    contexts: Tensor
    first: Tensor
    last: Tensor
    longest: int
    ancestors: Tensor | None = None
    draft_base: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.last)

    @property
    def sequences(self) -> int:
        return len(self.contexts)

    @property
    def single(self) -> bool:
        """Every sequence has exactly one row."""
        return self.longest == 1 and self.count == self.sequences

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All sequences that have rows, for kernels of plain torch. Long ones are alone: their masks are large."""
        members: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        contexts = self.contexts.tolist()
        for s, rows in enumerate(self.query_starts.diff().tolist()):
            if rows:
                pages = -(-contexts[s] // PAGE_TOKENS)
                members[rows, pages.bit_length(), s if rows > _SHORT else -1].append(s)
        return tuple(
            self._group(chosen, rows, max(contexts[s] for s in chosen))
            for (rows, _, _), chosen in members.items()
        )

    def _group(self, chosen: list[int], count: int, positions: int) -> Group:
        device = self.last.device
        members = torch.tensor(chosen, device=device)
        rows = self.query_starts[members].long()[:, None] + torch.arange(count, device=device)
        p = torch.arange(positions, device=device)
        seen = (p >= self.first[rows][:, :, None]) & (p <= self.last[rows][:, :, None])
        if self.ancestors is not None and self.draft_base is not None:
            bit = p - self.draft_base[members][:, None]
            bit = torch.where((bit >= 0) & (bit < MAX_DRAFTS), bit, MAX_DRAFTS)
            seen |= ((self.ancestors[rows][:, :, None] >> bit[:, None, :]) & 1).bool()
        return Group(members, rows, positions, seen)

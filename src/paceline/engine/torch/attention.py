"""Attention over pages: what the blocks ask for, and how plain PyTorch does it.

What depends on the step alone is made once, for the first layer that needs it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import PageGroup, PlaneKind
from paceline.engine.step import Int64, Step
from paceline.engine.torch.latent_heads import LatentHeads
from paceline.engine.torch.members import Members, attend, sparse
from paceline.engine.torch.planes import PlaneStore, Slots, Table
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.visibility import SHORT, group, visible


@dataclass(frozen=True, slots=True)
class StepPlane:
    """One plane during one step; `find_members` gives the groups of sequences that are attended together."""

    store: PlaneStore
    slots: Slots
    find_members: Callable[[], list[Members]]

    @property
    def members(self) -> list[Members]:
        return self.find_members()

    def write(self, rows: Tensor) -> None:
        """Store `rows` [T, heads, dim] in their slots."""
        self.store.write(self.slots, rows)

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        """[sequences, heads, n * PAGE_TOKENS, dim]"""
        return self.store.gather(table, dtype)

    def by_members(self, q: Tensor, attend_to: Callable[[Members, Tensor], Tensor]) -> Tensor:
        """`attend_to` of each member group's rows of `q` [T, heads, dim], put together again: [T, heads, value dim]"""
        groups = self.members
        if len(groups) == 1 and isinstance(groups[0].rows, slice):
            return attend_to(groups[0], q)
        out: Tensor | None = None
        for members in groups:
            part = attend_to(members, q[members.rows])
            if out is None:
                out = q.new_empty(len(q), *part.shape[1:])
            out[members.rows] = part
        return q.new_empty(q.shape) if out is None else out


class Attention(Protocol):
    """One step of all layers. Each call first stores the keys and values of every row in the row's slot."""

    def grouped(
        self, layer: int, q: Tensor, kv: Tensor, *, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Grouped-query attention.

        q: [T, heads, dim]
        kv: [T, 2 * kv_heads, dim], keys before values
        sinks: float32 [heads], logits that join each head's softmax
        returns [T, heads, dim]
        """

    def latent(
        self, layer: int, q: Tensor, kv: Tensor, heads: LatentHeads, selected: Tensor | None
    ) -> Tensor:
        """Attention to latents.

        q: [T, heads, nope + rope]
        kv: [T, latent_dim], the latent and behind it the rotary key
        selected: int32 [T, k], the positions that a row attends to of those it sees, -1 for none; None for all
        returns [T, heads, value_dim]
        """

    def index(self, layer: int, keys: Tensor) -> StepPlane:
        """Keys [T, dim] of a sparse-attention indexer, and the plane in which those of all positions lie now."""


class StepAttention:
    """`Attention` by gathering pages: on every device, and what others are measured against."""

    def __init__(
        self, step: Step, pool: PagePool, slots: Sequence[Slots], device: torch.device, dtype: torch.dtype
    ) -> None:
        """`slots` are those of each page group."""
        self._step = step
        self._pool = pool
        self._slots = slots
        self._device = device
        self._dtype = dtype
        self._members: dict[int, list[Members]] = {}

    def grouped(
        self, layer: int, q: Tensor, kv: Tensor, *, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        plane = self.plane(layer, "kv")
        plane.write(kv)

        def attend_to(members: Members, q: Tensor) -> Tensor:
            kv = plane.gather(members.table, q.dtype)[:, :, : members.positions]
            heads = kv.shape[1] // 2
            return attend(q, kv[:, :heads], kv[:, heads:], members, scale=scale, sinks=sinks)

        return plane.by_members(q, attend_to)

    def latent(
        self, layer: int, q: Tensor, kv: Tensor, heads: LatentHeads, selected: Tensor | None
    ) -> Tensor:
        plane = self.plane(layer, "latent")
        plane.write(kv[:, None])

        def attend_to(members: Members, q: Tensor) -> Tensor:
            cached = plane.gather(members.table, q.dtype)[:, :, : members.positions]
            if selected is not None:
                members = sparse(members, selected[members.rows], q.dtype)
            return heads.attend(q, cached, members)

        return plane.by_members(q, attend_to)

    def index(self, layer: int, keys: Tensor) -> StepPlane:
        plane = self.plane(layer, "index")
        plane.write(keys[:, None])
        return plane

    def plane(self, layer: int, kind: PlaneKind) -> StepPlane:
        g, store = self._pool.plane(layer, kind)
        return StepPlane(store, self._slots[g], lambda: self._members_of(g))

    def alone(self, g: int, sequence: int) -> Members:
        """One sequence by itself, as page group `g` has it."""
        return self._gather(g, self._pool.layout.groups[g], [sequence])

    def _members_of(self, g: int) -> list[Members]:
        if (found := self._members.get(g)) is None:
            pages = self._pool.layout.groups[g]
            found = [self._gather(g, pages, members) for members in group(self._step)]
            self._members[g] = found
        return found

    def _gather(self, g: int, pages: PageGroup, members: list[int]) -> Members:
        step = self._step
        starts, contexts = step.query_starts[members], step.contexts[members]
        rows = int(step.query_starts[members[0] + 1] - starts[0])
        begin = int(min(pages.first_page(p) for p in step.positions[starts].tolist()))
        end = -(-int(contexts.max()) // PAGE_TOKENS)
        alone = len(members) == 1
        last = int(contexts[0]) if alone else end * PAGE_TOKENS
        columns = np.arange(begin * PAGE_TOKENS, last, dtype=np.int64)
        consecutive = members == list(range(members[0], members[0] + len(members)))
        first = int(starts[0])
        index = torch.from_numpy((starts[:, None] + np.arange(rows)).reshape(-1)).to(self._device)
        drafts = bool((step.parents[first : first + rows] >= 0).any())
        whole = alone and pages.first_visible(last - 1) <= begin * PAGE_TOKENS and not drafts
        causal = whole and rows == len(columns) and rows > SHORT
        unmasked = causal or (whole and rows == 1)
        return Members(
            rows=slice(first, first + len(index)) if consecutive else index,
            table=self._table(g, pages, members, begin, end),
            sequences=len(members),
            query_rows=rows,
            positions=len(columns),
            mask=None if unmasked else self._mask(members, columns, pages),
            causal=causal,
        )

    def _table(self, g: int, pages: PageGroup, members: list[int], begin: int, end: int) -> Table:
        step = self._step
        contexts, starts = step.contexts[members], step.query_starts[members]
        own_first = np.array([pages.first_page(p) for p in step.positions[starts].tolist()])
        own_last = (contexts - 1) // PAGE_TOKENS
        table = step.page_table[g, members, begin:end].astype(np.int64)
        # Where a sequence has no page its last one stands in: masked, but surely finite.
        column = np.arange(begin, end)
        live = (own_first[:, None] <= column) & (column <= own_last[:, None])
        stand_in = step.page_table[g, members, own_last].astype(np.int64)
        return Table(torch.from_numpy(np.where(live, table, stand_in[:, None])).to(self._device))

    def _mask(self, members: list[int], columns: Int64, pages: PageGroup) -> Tensor:
        seen = torch.from_numpy(visible(self._step, members, columns, pages.span))
        mask = torch.zeros(seen.shape, dtype=self._dtype).masked_fill_(~seen, -torch.inf)
        return mask[:, None].to(self._device)

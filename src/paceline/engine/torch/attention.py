"""Attention over pages: what depends on the step alone is made once, for the first layer that needs it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import PageGroup, PlaneKind
from paceline.engine.step import Int64, Step
from paceline.engine.torch.planes import PlaneStore, Slots, Table
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.visibility import SHORT, group, visible


@dataclass(frozen=True, slots=True)
class Members:
    """Sequences that one kernel call attends, of equally many query rows each.

    rows: where these lie in the step: a slice, or int64 [sequences * query rows]
    table: their pages from the first that any row sees
    sequences, query_rows: how many
    positions: columns of keys and values to attend to, of each sequence
    mask: added to the scores, [sequences, 1, query rows, positions]; None when every row sees everything, or, when
        `causal`, everything before it
    """

    rows: slice | Tensor
    table: Table
    sequences: int
    query_rows: int
    positions: int
    mask: Tensor | None
    causal: bool


@dataclass(frozen=True, slots=True)
class StepPlane:
    """One plane during one step."""

    store: PlaneStore
    slots: Slots
    members: list[Members]

    def write(self, rows: Tensor) -> None:
        """Store `rows` [T, heads, dim] in their slots."""
        self.store.write(self.slots, rows)

    def gather(self, table: Table, dtype: torch.dtype) -> Tensor:
        """[sequences, heads, n * PAGE_TOKENS, dim]"""
        return self.store.gather(table, dtype)

    def by_members(self, q: Tensor, attend_to: Callable[[Members, Tensor], Tensor]) -> Tensor:
        """`attend_to` of each member group's rows of `q` [T, heads, dim], put together again: [T, heads, value dim]"""
        if len(self.members) == 1 and isinstance(self.members[0].rows, slice):
            return attend_to(self.members[0], q)
        out: Tensor | None = None
        for members in self.members:
            part = attend_to(members, q[members.rows])
            if out is None:
                out = q.new_empty(len(q), *part.shape[1:])
            out[members.rows] = part
        return q.new_empty(q.shape) if out is None else out


class StepAttention:
    """What attention needs to know of one step."""

    def __init__(self, step: Step, pool: PagePool, device: torch.device, dtype: torch.dtype) -> None:
        self._step = step
        self._pool = pool
        self._device = device
        self._dtype = dtype
        self._members: dict[int, list[Members]] = {}
        self._slots = [Slots.of(slots, device) for slots in step.slots]

    def plane(self, layer: int, kind: PlaneKind) -> StepPlane:
        group, store = self._pool.plane(layer, kind)
        return StepPlane(store, self._slots[group], self._members_of(group))

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


def attend(
    q: Tensor, k: Tensor, v: Tensor, members: Members, *, scale: float, sinks: Tensor | None = None
) -> Tensor:
    """Attention of the rows of `members`.

    q: [sequences * query rows, heads, dim]
    k: [sequences, kv_heads, n, dim], n at least `members.positions`
    v: [sequences, kv_heads, n, value dim]
    sinks: [heads], logits that join each head's softmax
    returns [sequences * query rows, heads, value dim]
    """
    k, v, mask = k[:, :, : members.positions], v[:, :, : members.positions], members.mask
    q = q.view(members.sequences, members.query_rows, *q.shape[1:])
    short = members.query_rows <= SHORT
    causal = members.causal
    if sinks is not None:
        k, v, mask = _with_sink(k, v, members, sinks, q.dtype)
        causal = False
    if not short:
        out = scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        ).transpose(1, 2)
        return out.reshape(-1, *out.shape[2:])
    # The query heads of a KV head become rows of it: for one row 0.28 ms against 2.0 ms by enable_gqa.
    heads, sharing = q.shape[2], q.shape[2] // k.shape[1]
    q = q.view(*q.shape[:2], -1, sharing, q.shape[3]).permute(0, 2, 3, 1, 4)
    if mask is not None and (members.query_rows > 1 or mask.shape[1] > 1):
        mask = _fold(mask, k.shape[1], sharing)
    out = scaled_dot_product_attention(q.flatten(2, 3), k, v, attn_mask=mask, scale=scale)
    out = out.view(*q.shape[:-1], -1).permute(0, 3, 1, 2, 4)
    return out.reshape(-1, heads, out.shape[-1])


def _fold(mask: Tensor, kv_heads: int, sharing: int) -> Tensor:
    """A mask of query heads, or of all of them at once, as one whose rows are (query head of the KV head, row)."""
    if mask.shape[1] == 1:
        return mask.repeat(1, 1, sharing, 1)
    return mask.reshape(len(mask), kv_heads, -1, mask.shape[-1])


def _with_sink(
    k: Tensor, v: Tensor, members: Members, sinks: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """A position of zeros behind the others, to which the mask gives each head's sink as its logit."""
    k, v = (torch.cat((x, x.new_zeros(*x.shape[:2], 1, x.shape[3])), 2) for x in (k, v))
    rows, positions = members.query_rows, members.positions
    mask = members.mask
    if mask is None:
        mask = torch.zeros(1, 1, rows, positions, dtype=dtype, device=k.device)
        if members.causal:
            mask.masked_fill_(torch.ones_like(mask, dtype=torch.bool).triu(1), -torch.inf)
    mask = mask.expand(-1, len(sinks), -1, -1)
    column = sinks.to(dtype).view(1, -1, 1, 1).expand(*mask.shape[:3], 1)
    return k, v, torch.cat((mask, column), -1)

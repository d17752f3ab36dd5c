"""Attention over pages: everything that depends on the step alone is made once, before the first layer.

Sequences with equally many query rows and a similar number of pages form a group, which one kernel call attends:
all that decode one token, say. The query heads that share a KV head are laid out as further query rows of it, so
that no key or value is ever repeated.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.step import Int64, Step
from paceline.engine.torch.pool import PagePool
from paceline.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class _Group:
    """B sequences of R query rows each, over N positions.

    rows: where the query rows lie in the step, [B * R] or a slice
    pages: lines of the pool, as `PagePool.row_index`
    mask: added to the scores, [B, 1, rows of a KV head or 1, N]; None when every row sees everything
    """

    rows: slice | Tensor
    pages: Tensor
    shape: tuple[int, int, int]
    mask: Tensor | None
    causal: bool


class StepAttention:
    """Attention of one step. Per layer: `write` the new keys and values, then `attend`."""

    def __init__(
        self, step: Step, config: ModelConfig, pool: PagePool, device: torch.device, dtype: torch.dtype
    ):
        self._config = config
        self._pool = pool
        self._device = device
        self._dtype = dtype
        self._slots = pool.slot_index(step.slots)
        self._groups = [self._group(step, np.array(members)) for members in _similar(step)]

    def write(self, layer: int, kv: Tensor) -> None:
        """Put the keys and values [T, 2 * kv_heads, head_dim] of every row into its slot."""
        slots = self._pool.slots[layer]
        slots.index_copy_(0, self._slots, kv.reshape(-1, self._config.head_dim).to(slots.device, slots.dtype))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """q: [T, heads, head_dim] -> [T, heads * head_dim]"""
        if len(self._groups) == 1:
            return self._attend(self._groups[0], layer, q)
        out = torch.empty_like(q).flatten(1)
        for group in self._groups:
            out[group.rows] = self._attend(group, layer, q[group.rows])
        return out

    def _attend(self, group: _Group, layer: int, q: Tensor) -> Tensor:
        sequences, rows, positions = group.shape
        heads, kv_heads, dim = self._config.heads, self._config.kv_heads, self._config.head_dim
        kv = self._pool.rows[layer].index_select(0, group.pages).to(self._device, self._dtype)
        k, v = kv.view(2, sequences, kv_heads, -1, dim)[:, :, :, :positions].unbind(0)
        if group.causal:
            q = q.view(sequences, rows, heads, dim).transpose(1, 2)
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
            return out.transpose(1, 2).reshape(sequences * rows, heads * dim)
        q = (
            q.view(sequences, rows, kv_heads, -1, dim)
            .permute(0, 2, 3, 1, 4)
            .reshape(sequences, kv_heads, -1, dim)
        )
        out = scaled_dot_product_attention(q, k, v, attn_mask=group.mask)
        out = out.view(sequences, kv_heads, -1, rows, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(sequences * rows, heads * dim)

    def _group(self, step: Step, members: Int64) -> _Group:
        starts = step.query_starts[members]
        rows = int(step.query_starts[members[0] + 1] - starts[0])
        contexts = step.contexts[members]
        pages = -(-int(contexts.max()) // PAGE_TOKENS)
        table = step.page_table[members, :pages].astype(np.int64)
        # Padding repeats a page of the sequence itself: masked, but surely finite.
        padding = np.arange(pages) * PAGE_TOKENS >= contexts[:, None]
        table = np.where(padding, table[:, :1], table)
        alone = len(members) == 1
        positions = int(contexts[0]) if alone else pages * PAGE_TOKENS
        plain = not (step.parents[starts[0] : starts[0] + rows] >= 0).any()
        causal = alone and plain and rows == positions and rows > 1
        unmasked = causal or (alone and rows == 1)
        row_index = starts[:, None] + np.arange(rows)
        return _Group(
            rows=slice(int(starts[0]), int(starts[0]) + rows)
            if alone
            else torch.from_numpy(row_index.reshape(-1)),
            pages=self._pool.row_index(table),
            shape=(len(members), rows, positions),
            mask=None if unmasked else self._mask(visible(step, members, rows, positions)),
            causal=causal,
        )

    def _mask(self, seen: npt.NDArray[np.bool_]) -> Tensor:
        """[B, R, N] -> what is added to the scores, repeated for the query heads that share a KV head."""
        sequences, rows, positions = seen.shape
        mask = torch.zeros(seen.shape, dtype=self._dtype).masked_fill_(torch.from_numpy(~seen), -torch.inf)
        if rows == 1:
            return mask[:, None].to(self._device)
        group = self._config.heads // self._config.kv_heads
        mask = mask[:, None, None].expand(sequences, 1, group, rows, positions)
        return mask.reshape(sequences, 1, group * rows, positions).to(self._device)


def visible(step: Step, members: Int64, rows: int, positions: int) -> npt.NDArray[np.bool_]:
    """Which positions each row of the sequences `members`, of `rows` rows each, attends to: [B, rows, positions]."""
    starts, contexts = step.query_starts[members], step.contexts[members]
    last = contexts[:, None] - rows + np.arange(rows)
    seen: npt.NDArray[np.bool_] = np.arange(positions) <= last[:, :, None]
    for b, (start, context) in enumerate(zip(starts.tolist(), contexts.tolist(), strict=True)):
        parents = step.parents[start : start + rows] - start
        drafts = int(np.count_nonzero(parents >= 0))
        if drafts:
            first = rows - drafts
            seen[b, first:, context - drafts : context] = _ancestors(parents[first:] - first)
    return seen


def _ancestors(parents: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """[drafts, drafts]: itself and its ancestors. A parent below 0 is no draft."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            seen[i] |= seen[parent]
    return seen


def _similar(step: Step) -> list[list[int]]:
    """Sequences by number of rows and, within a factor of two, of pages: padding at most doubles what is read."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = np.diff(step.query_starts)
    pages = -(-step.contexts // PAGE_TOKENS)
    for s in range(step.sequences):
        groups[int(rows[s]), int(pages[s]).bit_length()].append(s)
    # Chunks attend one by one: they fill a kernel alone, and their masks would be large.
    return [
        g
        for (r, _), members in groups.items()
        for g in ([members] if r <= _SHORT else [[s] for s in members])
    ]


_SHORT = 16

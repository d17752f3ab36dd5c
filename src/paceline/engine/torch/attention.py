"""Attention over pages: everything that depends on the step alone is made once, before the first layer."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.step import Step
from paceline.engine.torch.pool import PagePool
from paceline.engine.torch.visibility import SHORT, group, visible
from paceline.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that one kernel call attends, of equally many query rows each.

    rows: where these lie in the step: a slice, or int64 [sequences * query rows]
    pages: lines of the pool, as from `PagePool.row_index`
    positions: keys and values to attend to, of each sequence
    mask: added to the scores; None when every row sees everything, or everything before it
    causal: the rows are the whole context, each sees what is before it
    """

    rows: slice | Tensor
    pages: Tensor
    sequences: int
    positions: int
    mask: Tensor | None
    causal: bool


class StepAttention:
    """Attention of one step. Per layer: `write` the new keys and values, then `attend`."""

    def __init__(
        self, step: Step, config: ModelConfig, pool: PagePool, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._config = config
        self._pool = pool
        self._device = device
        self._dtype = dtype
        self._slots = pool.slot_index(step.slots)
        self._groups = [self._group(step, members) for members in group(step)]

    def write(self, layer: int, kv: Tensor) -> None:
        """Put the keys and values [T, 2 * kv_heads, head_dim] of every row into its slot."""
        slots = self._pool.slots[layer]
        slots.index_copy_(0, self._slots, kv.reshape(-1, self._config.head_dim).to(slots.device, slots.dtype))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """q: [T, heads, head_dim] -> [T, heads * head_dim]"""
        if len(self._groups) == 1 and isinstance(self._groups[0].rows, slice):
            return self._attend(self._groups[0], layer, q)
        out = torch.empty_like(q).flatten(1)
        for members in self._groups:
            out[members.rows] = self._attend(members, layer, q[members.rows])
        return out

    def _attend(self, members: _Group, layer: int, q: Tensor) -> Tensor:
        config, sequences = self._config, members.sequences
        kv = self._pool.rows[layer].index_select(0, members.pages).to(self._device, self._dtype)
        kv = kv.view(2, sequences, config.kv_heads, -1, config.head_dim)[:, :, :, : members.positions]
        q = q.view(sequences, -1, config.heads, config.head_dim)
        if q.shape[1] > SHORT:
            out = scaled_dot_product_attention(
                q.transpose(1, 2),
                kv[0],
                kv[1],
                attn_mask=members.mask,
                is_causal=members.causal,
                enable_gqa=True,
            ).transpose(1, 2)
        else:
            # The query heads of a KV head become rows of it: for one row 0.28 ms against 2.0 ms by enable_gqa.
            shape = (sequences, q.shape[1], config.kv_heads, -1, config.head_dim)
            q = q.view(shape).permute(0, 2, 3, 1, 4)
            out = scaled_dot_product_attention(q.flatten(2, 3), kv[0], kv[1], attn_mask=members.mask)
            out = out.view(q.shape).permute(0, 3, 1, 2, 4)
        return out.reshape(-1, config.heads * config.head_dim)

    def _group(self, step: Step, members: list[int]) -> _Group:
        starts, contexts = step.query_starts[members], step.contexts[members]
        rows = int(step.query_starts[members[0] + 1] - starts[0])
        pages = -(-int(contexts.max()) // PAGE_TOKENS)
        table = step.page_table[members, :pages].astype(np.int64)
        # Padding repeats a page of the sequence itself: masked, but surely finite.
        table = np.where(np.arange(pages) * PAGE_TOKENS < contexts[:, None], table, table[:, :1])
        consecutive = members == list(range(members[0], members[0] + len(members)))
        first = int(starts[0])
        index = torch.from_numpy((starts[:, None] + np.arange(rows)).reshape(-1))
        alone = len(members) == 1
        positions = int(contexts[0]) if alone else pages * PAGE_TOKENS
        drafts = (step.parents[first : first + rows] >= 0).any()
        causal = alone and rows == positions and rows > SHORT and not drafts
        unmasked = causal or (alone and rows == 1)
        return _Group(
            rows=slice(first, first + len(index)) if consecutive else index,
            pages=self._pool.row_index(table),
            sequences=len(members),
            positions=positions,
            mask=None if unmasked else self._mask(step, members, positions),
            causal=causal,
        )

    def _mask(self, step: Step, members: list[int], positions: int) -> Tensor:
        """[sequences, 1, query rows, positions], of short sequences once for each query head that shares a KV head."""
        seen = torch.from_numpy(visible(step, members, positions))
        mask = torch.zeros(seen.shape, dtype=self._dtype).masked_fill_(~seen, -torch.inf)
        repeats = self._config.heads // self._config.kv_heads if 1 < mask.shape[1] <= SHORT else 1
        return mask.repeat(1, repeats, 1)[:, None].to(self._device)

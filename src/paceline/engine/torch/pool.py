"""The page pool as tensors: the same memory, seen per layer."""

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.interface import Pages
from paceline.engine.layout import PageLayout
from paceline.engine.step import Int64, Step

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class PagePool:
    """Views of pages [page][layer][K|V][head][token][dim].

    `rows[layer]` holds one line of `PAGE_TOKENS * head_dim` values per (page, K|V, head), `slots[layer]` one of
    `head_dim` values per (page, K|V, head, token). Both begin at their layer's first line, so that one index serves
    every layer.
    """

    def __init__(self, pages: Pages, layout: PageLayout) -> None:
        self._layout = layout
        self._pages = torch.from_numpy(pages).view(_DTYPES[layout.dtype]).view(len(pages), *layout.shape)
        rows = self._pages.view(-1, PAGE_TOKENS * layout.head_dim)
        slots = self._pages.view(-1, layout.head_dim)
        self.heads = 2 * layout.kv_heads  # of keys and values, in one layer
        self.rows = [rows[i * self.heads :] for i in range(layout.layers)]
        self.slots = [slots[i * self.heads * PAGE_TOKENS :] for i in range(layout.layers)]

    def begin(self, step: Step) -> None:
        """Copy the moved slots, then clear every page that the step begins to write.

        Attention reads whole pages and masks what lies behind the context; what it masks must still be finite.
        """
        if len(step.moves):
            (from_page, from_offset), (to_page, to_offset) = (_split(step.moves[:, i]) for i in (0, 1))
            self._pages[to_page, :, :, :, to_offset] = self._pages[from_page, :, :, :, from_offset]
        if len(fresh := step.slots[step.slots % PAGE_TOKENS == 0]):
            self._pages.index_fill_(0, torch.from_numpy(fresh // PAGE_TOKENS), 0)

    def slot_index(self, slots: Int64) -> Tensor:
        """Lines in `slots[layer]` of the keys and values at `slots` [rows]: int64 [rows * heads]."""
        page, offset = _split(slots)
        lines = page[:, None] * (self._layout.layers * self.heads) + torch.arange(self.heads)
        return (lines * PAGE_TOKENS + offset[:, None]).view(-1)

    def row_index(self, page_table: Int64) -> Tensor:
        """Lines in `rows[layer]` of the pages [sequences, n]: int64 [2 * sequences * kv_heads * n], in this order."""
        kv, heads = torch.arange(self.heads).view(2, 1, self._layout.kv_heads, 1).unbind(0)
        page = torch.from_numpy(page_table)[:, None, :] * (self._layout.layers * self.heads)
        return torch.stack((page + kv, page + heads)).view(-1)


def _split(slots: Int64) -> tuple[Tensor, Tensor]:
    flat = torch.from_numpy(slots.copy())
    return flat // PAGE_TOKENS, flat % PAGE_TOKENS

"""The page pool as tensors: the same memory, seen plane by plane."""

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.layout import PageLayout, PlaneKind
from paceline.engine.step import Int64, Step
from paceline.engine.torch.planes import PlaneStore, open_plane

PlaneKey: TypeAlias = tuple[int, PlaneKind]
"""Layer and kind."""


class PagePool:
    """`pages` uint8 [pages, page_bytes], of every group of `layout`.

    `scales` float32 [heads, 1, 1] of each plane that stores e4m3 values without a scale of their own.
    """

    def __init__(self, pages: Tensor, layout: PageLayout, scales: Mapping[PlaneKey, Tensor]) -> None:
        self._pages = pages
        self.layout = layout
        self._planes: dict[PlaneKey, tuple[int, PlaneStore]] = {}
        # The parts of a page that hold whole rows of bytes per token: what a move copies.
        self._token_parts: list[list[tuple[int, int, int]]] = [[] for _ in layout.groups]
        for group, offset, plane in layout.planes():
            key = (plane.layer, plane.kind)
            self._planes[key] = (group, open_plane(pages, offset, plane, scales.get(key)))
            self._token_parts[group] += plane.token_parts(offset)

    def plane(self, layer: int, kind: PlaneKind) -> tuple[int, PlaneStore]:
        """The page group whose pages it lies in, and the plane."""
        return self._planes[layer, kind]

    def begin(self, step: Step) -> None:
        """Copy the moved slots, then clear every page that the step begins to write.

        Attention reads whole pages and masks what lies behind the context; what it masks must still be finite.
        """
        for group, moves in enumerate(step.moves):
            if len(moves):
                self._move(group, moves)
        fresh = step.slots[step.slots % PAGE_TOKENS == 0] // PAGE_TOKENS
        if len(fresh):
            self._pages.index_fill_(0, torch.from_numpy(fresh).to(self._pages.device), 0)

    def _move(self, group: int, moves: Int64) -> None:
        source, target = torch.from_numpy(moves.T.copy()).to(self._pages.device)
        for offset, lines, width in self._token_parts[group]:
            part = self._pages[:, offset : offset + lines * PAGE_TOKENS * width]
            part = part.view(-1, lines, PAGE_TOKENS, width)
            found = part[source // PAGE_TOKENS, :, source % PAGE_TOKENS]
            part[target // PAGE_TOKENS, :, target % PAGE_TOKENS] = found

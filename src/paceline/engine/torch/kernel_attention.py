"""Attention over pages by the kernels, which read them where they lie."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.engine.layout import PageLayout
from paceline.engine.step import Int64, Step
from paceline.engine.torch.attention import StepAttention, StepPlane
from paceline.engine.torch.kernels.kv_write import kv_write, latent_write
from paceline.engine.torch.kernels.mla_decode import mla_decode
from paceline.engine.torch.kernels.paged_attention import paged_attention
from paceline.engine.torch.kernels.planes import LatentView
from paceline.engine.torch.kernels.rows import Rows
from paceline.engine.torch.latent_heads import LatentHeads
from paceline.engine.torch.members import Members
from paceline.engine.torch.planes import Slots
from paceline.engine.torch.step_rows import part, step_rows
from paceline.engine.torch.upload import upload
from paceline.engine.torch.views import Views
from paceline.engine.torch.visibility import SHORT
from paceline.model.config import LatentAttention


@dataclass(frozen=True, slots=True)
class Absorbed:
    """Rows whose queries are brought to the latents; `index` int64 are theirs in the step, None for all."""

    rows: Rows
    table: Tensor
    index: Tensor | None


@dataclass(frozen=True, slots=True)
class Ways:
    """Which rows take which of the two ways to the latents."""

    absorbed: Absorbed | None
    expanded: list[Members]


class KernelAttention:
    """`Attention` by kernels. Expanded latents and the choice of an indexer are left to `gathering`.

    No sequence of the step has more than `kernels.rows.MAX_DRAFTS` drafts.
    """

    def __init__(
        self,
        step: Step,
        views: Views,
        layout: PageLayout,
        slots: list[Slots],
        gathering: StepAttention,
        device: torch.device,
    ) -> None:
        self._step = step
        self._views = views
        self._slots = slots
        self._gathering = gathering
        self._device = device
        spans = list(dict.fromkeys(group.span for group in layout.groups))
        by_span = dict(zip(spans, step_rows(step, spans, device), strict=True))
        self._rows = [by_span[group.span] for group in layout.groups]
        (tables,) = upload([step.page_table], device)
        self._tables = list(tables)
        self._ways: dict[tuple[int, LatentAttention], Ways] = {}

    def grouped(
        self, layer: int, q: Tensor, kv: Tensor, *, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        g, view = self._views.groups[layer, "kv"], self._views.kv[layer]
        view.write(kv, self._slots[g].flat)
        return paged_attention(q, view.key, view.value, self._tables[g], self._rows[g], scale, sinks)

    def latent(
        self, layer: int, q: Tensor, kv: Tensor, heads: LatentHeads, selected: Tensor | None
    ) -> Tensor:
        g, view = self._views.groups[layer, "latent"], self._views.latent[layer]
        content, rope = kv.tensor_split((heads.config.kv_rank,), -1)
        latent_write(content, rope, view, self._slots[g].flat)
        if selected is not None:
            return _absorb(q, view, heads, Absorbed(self._rows[g], self._tables[g], None), selected)
        ways = self._ways_of(g, heads)
        if not ways.expanded and ways.absorbed is not None:
            return _absorb(q, view, heads, ways.absorbed, None)
        out = q.new_empty(len(q), heads.config.heads, heads.config.value_dim)
        plane = self._gathering.plane(layer, "latent")
        for members in ways.expanded:
            cached = plane.gather(members.table, q.dtype)[:, :, : members.positions]
            out[members.rows] = heads.expanded(q[members.rows], cached, members)
        if ways.absorbed is not None and ways.absorbed.index is not None:
            index = ways.absorbed.index
            out[index] = _absorb(q[index], view, heads, ways.absorbed, None)
        return out

    def index(self, layer: int, keys: Tensor) -> StepPlane:
        g = self._views.groups[layer, "index"]
        kv_write(keys[:, None], self._views.index[layer], self._slots[g].flat)
        return self._gathering.plane(layer, "index")

    def _ways_of(self, g: int, heads: LatentHeads) -> Ways:
        key = (g, heads.config)
        if (found := self._ways.get(key)) is None:
            found = self._ways[key] = self._choose(g, heads)
        return found

    def _choose(self, g: int, heads: LatentHeads) -> Ways:
        """Chunks long enough are expanded, each by itself; all others are absorbed together."""
        step = self._step
        counts = np.diff(step.query_starts)
        expanded = [
            s
            for s in np.flatnonzero(counts > SHORT).tolist()
            if heads.expands(int(counts[s]), int(step.contexts[s]))
        ]
        members = [self._gathering.alone(g, s) for s in expanded]
        if not expanded:
            return Ways(Absorbed(self._rows[g], self._tables[g], None), [])
        others: Int64 = np.setdiff1d(np.arange(step.sequences), expanded)
        return Ways(self._absorbed(g, others) if len(others) else None, members)

    def _absorbed(self, g: int, sequences: Int64) -> Absorbed:
        chosen, rows = part(self._step, sequences)
        (visible,) = step_rows(chosen, [None], self._device)
        index, table = upload([rows, chosen.page_table[g]], self._device)
        return Absorbed(visible, table, index)


def _absorb(
    q: Tensor, view: LatentView, heads: LatentHeads, absorbed: Absorbed, selected: Tensor | None
) -> Tensor:
    content, rope = heads.absorb(q)
    found = mla_decode(content, rope, view, absorbed.table, absorbed.rows, heads.config.scale, selected)
    return heads.values(found)

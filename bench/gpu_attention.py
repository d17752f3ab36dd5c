"""The kernels that read and write pages, at the shapes of one of eight GPUs that share a model's heads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.gpu_case import Case, Prepared
from bench.windows import chunk_step
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.layout import KvDtype, PageLayout, plan_layout
from paceline.engine.torch.kernels.mla_decode import mla_decode
from paceline.engine.torch.kernels.mla_decode import naive as mla_naive
from paceline.engine.torch.kernels.paged_attention import naive as paged_naive
from paceline.engine.torch.kernels.paged_attention import paged_attention
from paceline.engine.torch.kernels.rows import Rows
from paceline.engine.torch.pool import PlaneKey
from paceline.engine.torch.step_rows import step_rows
from paceline.engine.torch.upload import upload
from paceline.engine.torch.views import Views
from paceline.model.config import (
    Attention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerConfig,
    ModelConfig,
    Rope,
)

LLAMA = GroupedAttention(heads=8, kv_heads=1, head_dim=128, rope=None)
"""Llama 3 70B."""
KIMI = LatentAttention(
    heads=8, q_rank=1536, kv_rank=512, nope_dim=128, value_dim=128, rope=Rope(5e4, 64), scale=192**-0.5
)
"""Kimi K2.5, and GLM-5.2 beside its indexer."""
SELECTED = 2048
"""Positions that GLM-5.2's indexer selects."""


@dataclass(frozen=True)
class Batch:
    """`sequences` of `context` positions each, of which the last `rows` ask."""

    sequences: int
    context: int
    rows: int = 1

    def __str__(self) -> str:
        return f"{self.sequences} x {self.context}" + (f", {self.rows} rows" if self.rows > 1 else "")

    @property
    def seen(self) -> int:
        """Positions that all rows see together."""
        return self.sequences * (self.rows * self.context - self.rows * (self.rows - 1) // 2)


DECODE = [Batch(sequences, context) for context in (4096, 32768) for sequences in (1, 8, 32, 64)]
QUICK_DECODE = [Batch(1, 4096), Batch(32, 4096)]
PREFILL = [Batch(1, context, 2048) for context in (4096, 32768)]
KV: list[KvDtype] = ["bfloat16", "fp8_e4m3", "fp8_per_token_head"]


def cases(*, quick: bool) -> Iterator[Case]:
    decode = QUICK_DECODE if quick else DECODE
    prefill = PREFILL[:1] if quick else PREFILL
    for kv in KV:
        for batch in [*decode, *prefill]:
            yield paged(LLAMA, batch, kv)
        for batch in decode:
            yield latent(KIMI, batch, kv)
    for batch in decode:
        yield latent(KIMI, batch, "fp8_per_token_head", selected=min(SELECTED, batch.context))


@dataclass(frozen=True)
class Pool:
    """The pages of one layer for a batch, with random values, and what its rows see."""

    layout: PageLayout
    views: Views
    table: Tensor
    rows: Rows

    @classmethod
    def make(cls, attention: Attention, batch: Batch, kv: KvDtype, device: torch.device) -> "Pool":
        layout = one_layer(attention, kv)
        own = pages_for(batch.context)
        pages = torch.zeros(batch.sequences * own, layout.page_bytes, dtype=torch.uint8, device=device)
        chunk = np.zeros((batch.sequences, batch.rows), dtype=np.int32)
        step = chunk_step(chunk, batch.context - batch.rows, own * PAGE_TOKENS, 1, score=False)
        (table,) = upload([step.page_table[0]], device)
        (rows,) = step_rows(step, [None], device)
        views = Views(pages, layout, scales_of(layout))
        for view in views.kv.values():
            fill(view.key.values, view.key.scales)
            fill(view.value.values, view.value.scales)
        for latent_view in views.latent.values():
            fill(latent_view.content, latent_view.scales)
            fill(latent_view.rope, None)
        return cls(layout, views, table, rows)


def paged(attention: GroupedAttention, batch: Batch, kv: KvDtype) -> Case:
    def prepare(device: torch.device) -> Prepared:
        pool = Pool.make(attention, batch, kv, device)
        view, scale = pool.views.kv[0], attention.head_dim**-0.5
        q = random(pool.rows.count, attention.heads, attention.head_dim, device=device)
        return Prepared(
            run=lambda: paged_attention(q, view.key, view.value, pool.table, pool.rows, scale),
            reference=lambda: paged_naive.paged_attention(
                q.float(), view.key, view.value, pool.table, pool.rows, scale
            ),
            moved=batch.sequences * batch.context * pool.layout.token_bytes + 2 * q.nbytes,
            operations=4 * attention.heads * attention.head_dim * batch.seen,
        )

    return Case("paged_attention", f"{batch}, {kv}", prepare)


def latent(attention: LatentAttention, batch: Batch, kv: KvDtype, *, selected: int | None = None) -> Case:
    def prepare(device: torch.device) -> Prepared:
        pool = Pool.make(attention, batch, kv, device)
        view, count = pool.views.latent[0], pool.rows.count
        content = random(count, attention.heads, attention.kv_rank, device=device)
        rope = random(count, attention.heads, attention.rope.dim, device=device)
        chosen = None if selected is None else _choose(count, batch.context, selected, device)
        seen = batch.seen if selected is None else count * selected

        def run(attend: Callable[..., Tensor], q: Tensor, r: Tensor) -> Tensor:
            return attend(q, r, view, pool.table, pool.rows, attention.scale, chosen)

        return Prepared(
            run=lambda: run(mla_decode, content, rope),
            reference=lambda: run(mla_naive.mla_decode, content.float(), rope.float()),
            moved=batch.sequences * (selected or batch.context) * pool.layout.token_bytes
            + 2 * content.nbytes
            + rope.nbytes,
            operations=2 * attention.heads * (attention.latent_dim + attention.kv_rank) * seen,
        )

    return Case("mla_decode", f"{batch}, {kv}" + (f", {selected} selected" if selected else ""), prepare)


def one_layer(attention: Attention, kv: KvDtype) -> PageLayout:
    layers = (LayerConfig(attention, DenseMlp(8)),)
    return plan_layout(ModelConfig("bench", 8, layers, 8, 8, 1e-6, True, None, frozenset()), kv)


def scales_of(layout: PageLayout) -> dict[PlaneKey, tuple[float, ...]]:
    """Of keys and values different ones, where values have no scale of their own."""
    return {(p.layer, p.kind): (0.5, 0.25) for _, _, p in layout.planes() if p.format == "e4m3"}


def random(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).bfloat16()


def fill(values: Tensor, scales: Tensor | None) -> None:
    """A page's worth of random values, in each page moved by another amount, so that no page passes for another."""
    pages = torch.randn(len(values), *[1] * (values.dim() - 1), device=values.device)
    values.copy_(torch.randn(values.shape[1:], device=values.device) + pages / 2)
    if scales is not None:
        scales.copy_(torch.rand(scales.shape[1:], device=scales.device) + 0.5)


def _choose(rows: int, context: int, count: int, device: torch.device) -> Tensor:
    """Different positions for each row, int32 [rows, count], in no order."""
    return torch.rand(rows, context, device=device).topk(count).indices.int()

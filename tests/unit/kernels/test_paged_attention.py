from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.paged_attention import naive, paged_attention, triton
from paceline.engine.torch.kernels.planes import PlaneView
from paceline.engine.torch.kernels.rows import Rows
from tests.unit.kernels.pages import Batch, chunked, fill, windowed, with_drafts

Attention = Callable[..., Tensor]
KV_HEADS, GROUP, DIM, SCALE = 2, 3, 32, 0.2
HEADS = KV_HEADS * GROUP

both = pytest.mark.parametrize(
    "attend", [naive.paged_attention, triton.paged_attention], ids=["naive", "triton"]
)


class Case:
    """Random queries, keys and values of a batch, and what attention over them is, in float64."""

    def __init__(
        self, batch: Batch, dtype: torch.dtype = torch.float32, *, per_token: bool = False, dim: int = DIM
    ) -> None:
        self.batch = batch
        slots = batch.slots()
        n = len(slots)
        self.q = torch.randn(sum(batch.counts), HEADS + 1, dim)[:, 1:]
        # The planes of a pool lie in pages with others: keys and values of this layer behind those of one more.
        pool = torch.full((batch.pages, 2 * KV_HEADS + 1, PAGE_TOKENS, dim), torch.nan).to(dtype)
        scales = torch.full((batch.pages, 2 * KV_HEADS, PAGE_TOKENS), torch.nan)
        stored = torch.randn(n, 2 * KV_HEADS, dim).to(dtype)
        per_row = torch.rand(n, 2 * KV_HEADS) + 0.5
        fill(stored, slots, pool[:, 1:])
        fill(per_row[:, :, None], slots, scales[..., None])
        k_scale, v_scale = (0.5, 2.0) if dtype == torch.float8_e4m3fn and not per_token else (1.0, 1.0)
        split = KV_HEADS + 1
        self.key = PlaneView(pool[:, 1:split], k_scale, scales[:, :KV_HEADS] if per_token else None)
        self.value = PlaneView(pool[:, split:], v_scale, scales[:, KV_HEADS:] if per_token else None)
        true = stored.double() * (per_row[:, :, None] if per_token else 1)
        self._k, self._v = true[:, :KV_HEADS] * k_scale, true[:, KV_HEADS:] * v_scale

    def expected(self, rows: Rows, sinks: Tensor | None = None) -> Tensor:
        k, v = (x.repeat_interleave(GROUP, 1) for x in (self._k, self._v))
        logits = torch.einsum("thd,nhd->htn", self.q.double(), k) * SCALE
        logits = logits.masked_fill(~self.batch.dense_mask(rows), -torch.inf)
        if sinks is not None:
            sink = sinks.double().view(-1, 1, 1).expand(-1, rows.count, 1)
            logits = torch.cat((logits, sink), 2)
        weights = logits.softmax(2)[:, :, : len(v)]
        return torch.einsum("htn,nhd->thd", weights, v)

    def check(self, attend: Attention, rows: Rows, sinks: Tensor | None = None) -> None:
        out = attend(self.q, self.key, self.value, self.batch.page_table, rows, SCALE, sinks)
        torch.testing.assert_close(out.double(), self.expected(rows, sinks), rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_decoding_a_batch_of_mixed_lengths(attend: Attention, dtype: torch.dtype) -> None:
    batch = Batch.make((1, 200), (1, 1), (1, 64), (1, 65))
    Case(batch, dtype).check(attend, batch.causal())


@both
def test_prompts_chunks_and_decoding_rows_in_one_step(attend: Attention) -> None:
    batch = Batch.make((70, 70), (0, 10), (1, 130), (20, 90), (2, 3))
    Case(batch).check(attend, batch.causal())


@pytest.mark.parametrize("dim", [8, 24])
def test_heads_that_no_tensor_core_takes_as_they_are(dim: int) -> None:
    batch = Batch.make((3, 70), (1, 200))
    Case(batch, dim=dim).check(triton.paged_attention, batch.causal())


@both
def test_a_scale_for_each_token_and_head(attend: Attention) -> None:
    batch = Batch.make((3, 150), (1, 64))
    Case(batch, torch.float8_e4m3fn, per_token=True).check(attend, batch.causal())


@both
def test_sinks_join_the_softmax_once_however_the_context_is_split(attend: Attention) -> None:
    batch = Batch.make((1, 200), (2, 70))
    Case(batch).check(attend, batch.causal(), sinks=torch.randn(HEADS) + 2)


@both
@pytest.mark.parametrize("span", ["window", "chunk"])
def test_pages_outside_the_window_or_chunk_are_not_read(attend: Attention, span: str) -> None:
    batch = Batch.make((1, 200), (5, 140), (1, 30))
    rows = batch.causal()
    rows = windowed(rows, batch.positions, 10) if span == "window" else chunked(rows, batch.positions, 70)
    case = Case(batch)
    # Those pages went back: page 0 is full of NaN. So is here what else lies outside.
    for s, first in enumerate(rows.first[rows.query_starts[:-1].long()].tolist()):
        page, offset = divmod(first, PAGE_TOKENS)
        for plane in (case.key, case.value):
            plane.values[int(batch.page_table[s, page]), :, :offset] = torch.nan
        batch.page_table[s, :page] = 0
    assert (batch.page_table[:2, 0] == 0).all()
    case.check(attend, rows)


@both
def test_a_draft_sees_what_came_before_the_drafts_and_its_own_ancestors(attend: Attention) -> None:
    batch = Batch.make((8, 67), (1, 20), (4, 130))
    tree = [-1, 0, 0, 1, -1, 4, 3]
    Case(batch).check(attend, with_drafts(batch, [tree, [], [-1, 0, 1]]))


@both
def test_ancestors_stay_visible_where_the_window_is_shorter_than_their_path(attend: Attention) -> None:
    """63 drafts in a line, the most that fit: the kernel attends to the last of them apart from the first."""
    batch = Batch.make((64, 100))
    rows = with_drafts(batch, [[-1, *range(62)]])
    Case(batch).check(attend, rows)
    Case(batch).check(attend, windowed(rows, batch.positions, 2))


def test_bfloat16_queries_stay_within_their_rounding() -> None:
    batch = Batch.make((1, 200), (3, 100))
    case = Case(batch, torch.bfloat16)
    case.q = case.q.bfloat16()
    for attend in (naive.paged_attention, triton.paged_attention):
        out = attend(case.q, case.key, case.value, batch.page_table, batch.causal(), SCALE)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.double(), case.expected(batch.causal()), rtol=2e-2, atol=1e-2)


def test_the_processor_decides_for_the_plain_version() -> None:
    batch = Batch.make((2, 70))
    case = Case(batch)
    arguments = (case.q, case.key, case.value, batch.page_table, batch.causal(), SCALE)
    assert torch.equal(paged_attention(*arguments), naive.paged_attention(*arguments))

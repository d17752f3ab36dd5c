from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.kv_write import latent_write
from paceline.engine.torch.kernels.mla_decode import mla_decode, naive, triton
from paceline.engine.torch.kernels.planes import LatentView
from paceline.engine.torch.kernels.rows import Rows
from tests.unit.kernels.pages import Batch, windowed, with_drafts

Attention = Callable[..., Tensor]
HEADS, CONTENT, ROPE, SCALE = 5, 32, 16, 0.1

both = pytest.mark.parametrize("attend", [naive.mla_decode, triton.mla_decode], ids=["naive", "triton"])


def nan_bytes(*shape: int) -> Tensor:
    """Bytes that are NaN whichever of the dtypes of a page they are taken for."""
    return torch.full(shape, 0xFF, dtype=torch.uint8)


def make_latent(pages: int, kind: str) -> LatentView:
    if kind == "rows":
        # Rows as DeepSeek's, of smaller dimensions: 4 groups of 8 values.
        return LatentView.rows(nan_bytes(pages, PAGE_TOKENS, CONTENT + 16 + 2 * ROPE), CONTENT, 4)
    dtype = torch.float8_e4m3fn if kind == "e4m3" else getattr(torch, kind)
    plane = nan_bytes(pages, PAGE_TOKENS, (CONTENT + ROPE) * dtype.itemsize).view(dtype)
    return LatentView.joined(plane, CONTENT, 0.02 if kind == "e4m3" else 1.0)


class Case:
    """Random queries and latents of a batch, and what attention over them is, in float64."""

    def __init__(self, batch: Batch, kind: str = "float32", heads: int = HEADS) -> None:
        self.batch = batch
        slots = batch.slots()
        rows = sum(batch.counts)
        self.q_content = torch.randn(rows, heads, CONTENT)
        self.q_rope = torch.randn(rows, heads, ROPE + 4)[:, :, 4:]
        self.latent = make_latent(batch.pages, kind)
        latent_write(torch.randn(len(slots), CONTENT), torch.randn(len(slots), ROPE), self.latent, slots)
        page, offset = slots // PAGE_TOKENS, slots % PAGE_TOKENS
        content, rope = (x[page, offset].double() for x in (self.latent.content, self.latent.rope))
        if self.latent.scales is not None:
            groups = self.latent.scales[page, offset].double()
            self._content, self._rope = (content.view(-1, 4, 8) * groups[:, :, None]).flatten(1), rope
        else:
            self._content, self._rope = content * self.latent.scale, rope * self.latent.scale

    def expected(self, mask: Tensor) -> Tensor:
        logits = torch.einsum("thd,nd->htn", self.q_content.double(), self._content)
        logits += torch.einsum("thd,nd->htn", self.q_rope.double(), self._rope)
        weights = (logits * SCALE).masked_fill(~mask, -torch.inf).softmax(2)
        return torch.einsum("htn,nd->thd", weights, self._content)

    def check(self, attend: Attention, rows: Rows, selected: Tensor | None = None) -> None:
        batch = self.batch
        mask = batch.dense_mask(rows)
        if selected is not None:
            mask &= self._selection(selected)
        out = attend(self.q_content, self.q_rope, self.latent, batch.page_table, rows, SCALE, selected)
        torch.testing.assert_close(out.double(), self.expected(mask), rtol=1e-5, atol=1e-5)

    def _selection(self, selected: Tensor) -> Tensor:
        chosen = torch.zeros(len(selected), sum(self.batch.contexts), dtype=torch.bool)
        begin = row = 0
        for count, context in zip(self.batch.counts, self.batch.contexts, strict=True):
            for t in range(row, row + count):
                chosen[t, [begin + p for p in selected[t].tolist() if p >= 0]] = True
            begin, row = begin + context, row + count
        return chosen


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@both
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "e4m3", "rows"])
def test_decoding_a_batch_of_mixed_lengths(attend: Attention, kind: str) -> None:
    batch = Batch.make((1, 200), (1, 1), (1, 64), (1, 65))
    Case(batch, kind).check(attend, batch.causal())


@both
def test_several_rows_and_drafts_in_one_step(attend: Attention) -> None:
    batch = Batch.make((5, 100), (1, 30), (4, 66))
    Case(batch).check(attend, batch.causal())
    Case(batch).check(attend, with_drafts(batch, [[-1, 0, 0, 2], [], [-1, -1, 1]]))


@pytest.mark.parametrize(("kind", "heads"), [("float32", 20), ("rows", 20), ("rows", 70)])
def test_heads_in_programs_that_they_do_not_fill(kind: str, heads: int) -> None:
    batch = Batch.make((2, 70))
    Case(batch, kind, heads).check(triton.mla_decode, batch.causal())


@both
@pytest.mark.parametrize("kind", ["float32", "rows"])
def test_a_row_attends_to_selected_positions_alone(attend: Attention, kind: str) -> None:
    batch = Batch.make((2, 200), (1, 3), (1, 140))
    selected = torch.full((4, 140), -1, dtype=torch.int32)
    for t, (count, visible) in enumerate([(140, 199), (70, 200), (3, 3), (33, 140)]):
        places = torch.randperm(140)[:count]
        selected[t, places] = torch.randperm(visible)[:count].int()
    Case(batch, kind).check(attend, batch.causal(), selected)


@both
def test_what_lies_outside_the_window_or_is_not_selected_is_not_read(attend: Attention) -> None:
    batch = Batch.make((1, 200))
    case = Case(batch)
    selected = torch.tensor([[199, 3, -1, 130]], dtype=torch.int32)
    # Page 0 is full of NaN.
    batch.page_table[0, 1] = 0
    case.check(attend, batch.causal(), selected)
    batch.page_table[0, 0] = 0
    case.check(attend, windowed(batch.causal(), batch.positions, 70))


def test_bfloat16_queries_stay_within_their_rounding() -> None:
    batch = Batch.make((1, 200), (3, 100))
    case = Case(batch, "bfloat16")
    case.q_content, case.q_rope = case.q_content.bfloat16(), case.q_rope.bfloat16()
    expected = case.expected(batch.dense_mask(batch.causal()))
    for attend in (naive.mla_decode, triton.mla_decode):
        out = attend(case.q_content, case.q_rope, case.latent, batch.page_table, batch.causal(), SCALE)
        assert out.dtype == torch.bfloat16
        torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=1e-2)


def test_the_processor_decides_for_the_plain_version() -> None:
    batch = Batch.make((2, 70))
    case = Case(batch)
    arguments = (case.q_content, case.q_rope, case.latent, batch.page_table, batch.causal(), SCALE)
    assert torch.equal(mla_decode(*arguments), naive.mla_decode(*arguments))

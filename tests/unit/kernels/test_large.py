"""Places that no number of 32 bits reaches: pools of 100 GB, experts of gigabytes, rows that lie far apart.

The memory is address space, of which only what is touched exists. Sums and products that leave 32 bits are errors of
the interpreter here; a GPU would go on with the wrong address.
"""

import mmap
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Sampling
from paceline.engine.torch.kernels.experts import DenseExperts, ExpertLayer, Fp8Experts, Int4Experts
from paceline.engine.torch.kernels.experts import naive as plain_experts
from paceline.engine.torch.kernels.experts import triton as experts
from paceline.engine.torch.kernels.fp8_linear import triton as fp8_linear
from paceline.engine.torch.kernels.kv_write import naive as plain_write
from paceline.engine.torch.kernels.kv_write import triton as kv_write
from paceline.engine.torch.kernels.mla_decode import triton as mla_decode
from paceline.engine.torch.kernels.paged_attention import triton as paged_attention
from paceline.engine.torch.kernels.planes import LatentView, PlaneView
from paceline.engine.torch.kernels.rms_norm import triton as rms_norm
from paceline.engine.torch.kernels.rope import triton as rope
from paceline.engine.torch.kernels.sampling import Draws
from paceline.engine.torch.kernels.sampling import triton as sampling
from tests.unit.kernels.pages import Batch

NO_RESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python 3.11 does not name
APART = 2**30 + 16  # elements: of three rows, the last begins where 32 bits do not reach
PAGE_BYTES = 61 * PAGE_TOKENS * 1152  # of DeepSeek-V3 in bfloat16
FIRST = 100 * 10**9 // PAGE_BYTES  # the pages of a test lie behind those of 100 GB


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "options", replace(builder.options, debug=True))
    torch.manual_seed(0)


def reserved(size: int) -> Tensor:
    """uint8 [size], zeros."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.uint8)


def pool(pages: int) -> Tensor:
    """uint8 [FIRST + pages, PAGE_BYTES]"""
    return reserved((FIRST + pages) * PAGE_BYTES).view(-1, PAGE_BYTES)


def far(x: Tensor) -> Tensor:
    """The same values, with `APART` elements from row to row."""
    rows = reserved(len(x) * APART * x.itemsize).view(x.dtype).as_strided(x.shape, (APART, *x.stride()[1:]))
    return rows.copy_(x)


def plane(pages: Tensor, offset: int, heads: int, dim: int) -> PlaneView:
    """Of bfloat16, `offset` bytes from the start of each page."""
    stored = pages[:, offset : offset + 2 * heads * PAGE_TOKENS * dim]
    return PlaneView(stored.view(torch.bfloat16).view(-1, heads, PAGE_TOKENS, dim))


def test_keys_and_values_behind_100_gb() -> None:
    batch = Batch.make((1, 70), (1, 3))
    slots = batch.slots() + FIRST * PAGE_TOKENS
    q, kv = torch.randn(2, 4, 16), torch.randn(len(slots), 2, 16).bfloat16()
    results = []
    for pages, first in ((pool(batch.pages), FIRST), (torch.zeros(batch.pages, PAGE_BYTES).byte(), 0)):
        key, value = plane(pages, 0, 1, 16), plane(pages, PAGE_BYTES // 2, 1, 16)
        kv_write.kv_write(kv[:, :1], key, slots - (FIRST - first) * PAGE_TOKENS)
        kv_write.kv_write(kv[:, 1:], value, slots - (FIRST - first) * PAGE_TOKENS)
        table = batch.page_table + first
        results.append(paged_attention.paged_attention(q, key, value, table, batch.causal(), 0.3))
    assert results[0].any()
    assert torch.equal(*results)


def test_latents_behind_100_gb() -> None:
    batch = Batch.make((2, 70), (1, 3))
    q_content, q_rope = torch.randn(3, 4, 32), torch.randn(3, 4, 16)
    stored, selected = (
        torch.randn(batch.pages, PAGE_TOKENS, 48).bfloat16(),
        torch.arange(3).repeat(3, 1).int(),
    )
    pages = pool(batch.pages)
    pages[FIRST:, : 96 * PAGE_TOKENS] = stored.view(torch.uint8).flatten(1)
    distant = pages[:, : 96 * PAGE_TOKENS].view(torch.bfloat16).view(-1, PAGE_TOKENS, 48)
    for chosen in (None, selected):
        found, expected = (
            mla_decode.mla_decode(
                q_content, q_rope, LatentView.joined(rows, 32), table, batch.causal(), 0.3, chosen
            )
            for rows, table in ((distant, batch.page_table + FIRST), (stored, batch.page_table))
        )
        assert torch.equal(found, expected)


def test_heads_that_lie_behind_all_rows_of_the_one_before() -> None:
    batch = Batch.make((1, 70))
    latent = LatentView.joined(torch.randn(batch.pages, PAGE_TOKENS, 48), 32)
    q = torch.randn(1, 3, 48)
    wide = far(q[0])[None]
    found, expected = (
        mla_decode.mla_decode(x[..., :32], x[..., 32:], latent, batch.page_table, batch.causal(), 0.3)
        for x in (wide, q)
    )
    assert torch.equal(found, expected)


def test_pages_behind_100_gb_are_converted() -> None:
    pages, target = pool(1), torch.zeros(1, 1, PAGE_TOKENS, 16)
    source = plane(pages, PAGE_BYTES // 2, 1, 16)
    source.values[FIRST] = torch.randn(1, PAGE_TOKENS, 16)
    kv_write.convert_pages(source, torch.tensor([FIRST]), PlaneView(target), torch.tensor([0]))
    assert torch.equal(target[0], source.values[FIRST].float())
    back = plane(pages, 0, 1, 16)
    kv_write.convert_pages(PlaneView(target), torch.tensor([0]), back, torch.tensor([FIRST]))
    assert torch.equal(back.values[FIRST], source.values[FIRST])


def stacked(rows: int, columns: int, count: int, form: str) -> DenseExperts | Fp8Experts | Int4Experts:
    """`count` experts of which only the last has weights."""
    if form == "int4":
        packed = reserved(count * rows * columns // 2).view(torch.int32).view(count, rows, -1)
        packed[-1] = torch.randint(-(2**31), 2**31, packed.shape[1:], dtype=torch.int32)
        return Int4Experts(packed, torch.full((count, rows, 1), 0.01))
    weight = reserved(count * rows * columns).view(torch.float8_e4m3fn).view(count, rows, columns)
    weight[-1] = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    return Fp8Experts(weight, torch.full((count, 1, 1), 0.01), (rows, columns))


@pytest.mark.parametrize(("form", "count"), [("fp8", 16500), ("int4", 132000)])
def test_an_expert_behind_2_to_the_31_weights(form: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_last(ids: Tensor, experts: int, tokens: int) -> tuple[Tensor, Tensor]:
        slots = torch.full((tokens,), 1, dtype=torch.int32)
        slots[0] = 0
        return slots, torch.tensor([experts - 1], dtype=torch.int32)

    monkeypatch.setattr(experts, "align", only_the_last)  # its kernel has a program for each expert
    layer = ExpertLayer(stacked(512, 256, count, form), stacked(256, 256, count, form))
    assert layer.gate_up.shape[0] * 512 * (256 if form == "fp8" else 32) > 2**31
    x, ids, weights = torch.randn(1, 256), torch.tensor([[count - 1]]), torch.ones(1, 1)
    expected = plain_experts.experts_w8a8(x, ids, weights, layer)
    torch.testing.assert_close(experts.experts(x, ids, weights, layer), expected, rtol=1e-4, atol=1e-4)


def test_rows_far_apart() -> None:
    x = torch.randn(3, 2, 16)
    apart, weight = far(x), torch.randn(16)
    assert torch.equal(rms_norm.rms_norm(apart, weight, 1e-6), rms_norm.rms_norm(x, weight, 1e-6))
    flat, distant = x.flatten(1), apart.flatten(1)
    assert distant.stride() == (APART, 1)
    for found, expected in zip(fp8_linear.quantise(distant), fp8_linear.quantise(flat), strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    draws = Draws.of([Sampling(max_tokens=1, seed=7)] * 3, [0, 1, 2], torch.device("cpu"))
    assert torch.equal(sampling.sample(distant, draws), sampling.sample(flat, draws))
    angles = torch.randn(3, 8)
    for rows in (apart, x):
        rope.rope_(rows, angles.cos(), angles.sin(), interleaved=True)
    assert torch.equal(apart, x)


def test_rows_are_written_from_far_apart() -> None:
    x = torch.randn(3, 2, 16)
    slots = torch.tensor([0, 5, 64])
    found, expected = (PlaneView(torch.zeros(2, 2, PAGE_TOKENS, 16)) for _ in range(2))
    kv_write.kv_write(far(x), found, slots)
    plain_write.kv_write(x, expected, slots)
    assert torch.equal(found.values, expected.values)

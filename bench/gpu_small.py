"""The kernels that pass over rows once: norms, rotation, writes to pages, sampling, tags."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gpu_attention import KV, LLAMA, fill, one_layer, random, scales_of
from bench.gpu_case import Case, Prepared
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Sampling
from paceline.engine.layout import KvDtype, PageLayout
from paceline.engine.torch.kernels.kv_write import convert_pages
from paceline.engine.torch.kernels.kv_write import naive as write_naive
from paceline.engine.torch.kernels.page_tags import changed
from paceline.engine.torch.kernels.page_tags import naive as tags_naive
from paceline.engine.torch.kernels.rms_norm import add_rms_norm
from paceline.engine.torch.kernels.rms_norm import naive as norm_naive
from paceline.engine.torch.kernels.rope import naive as rope_naive
from paceline.engine.torch.kernels.rope import rope_
from paceline.engine.torch.kernels.sampling import Draws, sample
from paceline.engine.torch.kernels.sampling import naive as sampling_naive
from paceline.engine.torch.views import Views
from paceline.model.config import GroupedAttention

_ONE_ROUNDING = 0.07  # of e4m3: a sixteenth


def cases(*, quick: bool) -> Iterator[Case]:
    rows = (64,) if quick else (1, 64, 2048)
    for count in rows:
        yield norm(count, 8192)
        yield rotation(count, heads=9, dim=128)
        for kv in KV:
            yield write(LLAMA, count, kv)
    yield conversion(LLAMA, 512, "fp8_e4m3")
    for vocab in (128_256, 163_840):
        yield drawing(64, vocab)
    yield tags(64 * 512)


def norm(rows: int, dim: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        x, residual = (random(rows, dim, device=device) for _ in range(2))
        weight = random(dim, device=device)
        return Prepared(
            run=lambda: add_rms_norm(x, residual, weight, 1e-5)[0],
            reference=lambda: norm_naive.add_rms_norm(x, residual, weight, 1e-5)[0],
            moved=4 * x.nbytes,
        )

    return Case("rms_norm", f"{rows} x {dim}, with residual", prepare)


def rotation(rows: int, *, heads: int, dim: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        angles = torch.rand(rows, dim // 2, device=device) * 6
        x, cos, sin = random(rows, heads, dim, device=device), angles.cos(), angles.sin()
        wide = x.float()

        def run() -> Tensor:
            rope_(x, cos, sin, interleaved=False)
            return x

        def reference() -> Tensor:
            rope_naive.rope_(wide, cos, sin, interleaved=False)
            return wide

        return Prepared(run, reference, moved=2 * x.nbytes + cos.nbytes + sin.nbytes)

    return Case("rope", f"{rows} x {heads} x {dim}", prepare)


def write(attention: GroupedAttention, rows: int, kv: KvDtype) -> Case:
    def prepare(device: torch.device) -> Prepared:
        layout = one_layer(attention, kv)
        found, expected = (_pages(layout, -(-rows // PAGE_TOKENS), device).kv[0] for _ in range(2))
        x = random(rows, 2 * attention.kv_heads, attention.head_dim, device=device)
        slots = torch.randperm(len(found.key.values) * PAGE_TOKENS, device=device)[:rows]

        def run() -> Tensor:
            found.write(x, slots)
            return found.key.values

        def reference() -> Tensor:
            write_naive.kv_write(x[:, : attention.kv_heads], expected.key, slots)
            return expected.key.values

        return Prepared(run, reference, moved=x.nbytes + rows * layout.token_bytes, tolerance=_ONE_ROUNDING)

    return Case("kv_write", f"{rows} rows, {kv}", prepare)


def conversion(attention: GroupedAttention, pages: int, kv: KvDtype) -> Case:
    def prepare(device: torch.device) -> Prepared:
        old, new = one_layer(attention, "bfloat16"), one_layer(attention, kv)
        source = _pages(old, pages, device).kv[0].key
        fill(source.values, None)
        found, expected = (_pages(new, pages, device).kv[0].key for _ in range(2))
        order, places = torch.randperm(pages, device=device), torch.arange(pages, device=device)

        def run() -> Tensor:
            convert_pages(source, order, found, places)
            return found.values

        def reference() -> Tensor:
            write_naive.convert_pages(source, order, expected, places)
            return expected.values

        moved = pages * PAGE_TOKENS * (old.token_bytes + new.token_bytes) // 2  # keys alone
        return Prepared(run, reference, moved=moved, tolerance=_ONE_ROUNDING)

    return Case("convert_pages", f"{pages} pages, bfloat16 -> {kv}", prepare)


def drawing(rows: int, vocab: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        logits = torch.randn(rows, vocab, device=device) * 3
        wishes = [
            Sampling(max_tokens=1, temperature=0.8, top_k=50 * (i % 2), top_p=0.95, seed=i)
            for i in range(rows)
        ]
        draws = Draws.of(wishes, range(rows), device)
        return Prepared(
            run=lambda: sample(logits, draws),
            reference=lambda: sampling_naive.sample(logits, draws),
            moved=logits.nbytes,
            tolerance=0.0,
        )

    return Case("sampling", f"{rows} x {vocab}, top-k and top-p", prepare)


def tags(count: int) -> Case:
    def prepare(device: torch.device) -> Prepared:
        table = torch.randint(0, 1 << 62, (count,), device=device)
        pages = torch.randperm(count, device=device)
        recorded = table[pages]
        recorded[::7] += 1
        return Prepared(
            run=lambda: changed(pages, recorded, table),
            reference=lambda: tags_naive.changed(pages, recorded, table),
            moved=3 * table.nbytes,
            tolerance=0.0,
        )

    return Case("page_tags", f"{count} pages", prepare)


def _pages(layout: PageLayout, count: int, device: torch.device) -> Views:
    pages = torch.zeros(count, layout.page_bytes, dtype=torch.uint8, device=device)
    return Views(pages, layout, scales_of(layout))

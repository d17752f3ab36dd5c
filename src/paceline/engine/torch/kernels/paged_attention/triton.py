"""`paged_attention` as one kernel: a program has some rows of one sequence, one KV head and a part of the context.

e4m3 is multiplied as the dtype of the queries, so that nothing is summed up in less than float32. Queries in float32
are for checks: no tensor core takes them.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.planes import PlaneView, check_contiguous
from paceline.engine.torch.kernels.rows import Rows
from paceline.engine.torch.kernels.split_context import splits_of
from paceline.engine.torch.kernels.split_context.triton import (
    DRAFTS,
    STEP_ARRAYS,
    VISIBLE,
    advance_softmax,
    combine,
    is_ancestor,
    sequence_of,
)

_MOST_LINES = 128


def paged_attention(
    q: Tensor,
    key: PlaneView,
    value: PlaneView,
    page_table: Tensor,
    rows: Rows,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    heads, dim = q.shape[1:]
    group = heads // key.heads
    assert q.shape == (rows.count, key.heads * group, key.dim)
    assert value.values.shape == key.values.shape
    assert key.values.shape[2] == PAGE_TOKENS
    assert q.stride(2) == 1
    assert page_table.shape[0] == rows.sequences
    assert page_table.stride(1) == 1
    assert (key.scales is None) == (value.scales is None)
    for view in (key.values, value.values, key.scales, value.scales):
        if view is not None:
            check_contiguous(view)
    # A line is one query head of one row; those of a KV head fill the rows of a tensor core together.
    lines = min(max(16, triton.next_power_of_2(rows.longest * group)), _MOST_LINES if dim <= 128 else 64)
    lines = max(lines, triton.next_power_of_2(group))
    blocks = rows.count if rows.single else rows.count // (lines // group) + rows.sequences
    splits = splits_of(blocks * key.heads, page_table.shape[1] * PAGE_TOKENS) if blocks else 1
    out = torch.empty(splits, *q.shape, dtype=q.dtype if splits == 1 else torch.float32, device=q.device)
    log_sums = torch.empty(splits, rows.count, heads, dtype=torch.float32, device=q.device)
    if blocks:
        _attend[(blocks, key.heads, splits)](
            out,
            log_sums,
            q,
            key.values,
            value.values,
            key.scales,
            value.scales,
            page_table,
            rows.query_starts,
            rows.contexts,
            rows.first,
            rows.last,
            rows.ancestors,
            rows.draft_base,
            sinks,
            scale * key.scale * math.log2(math.e),
            value.scale,
            rows.count,
            rows.sequences,
            q.stride(0),
            q.stride(1),
            key.values.stride(0),
            value.values.stride(0),
            0 if key.scales is None else key.scales.stride(0),
            0 if value.scales is None else value.scales.stride(0),
            page_table.stride(0),
            HEADS=heads,
            GROUP=group,
            DIM=dim,
            BLOCK_DIM=_block_dim(dim),
            LINES=lines,
            PAGE=PAGE_TOKENS,
            SINGLE=rows.single,
            **_shape(lines, dim, key.values.itemsize),
        )
    return out[0] if splits == 1 else combine(out, log_sums, q.dtype)


def _block_dim(dim: int) -> int:
    """A tensor core takes no fewer than 16."""
    power: int = triton.next_power_of_2(dim)
    return max(16, power)


def _shape(lines: int, dim: int, itemsize: int) -> dict[str, int]:
    """Warps for an accumulator of lines x dim, and how far ahead pages are loaded, whose values have `itemsize` bytes.

    The compiler takes one stage for the page table; five leave two pages in flight, which decoding needs to keep the
    memory busy, and three leave one, for which prompts have the arithmetic to wait. Two of the largest pages do not
    fit into shared memory.
    """
    return {
        "num_warps": 8 if (lines > 64 and dim > 64) or (lines > 16 and dim > 128) else 4,
        "num_stages": 5 if lines == 16 and dim * itemsize <= 512 else 3,
    }


# Numbers that differ from step to step, for whose sizes nothing shall be compiled anew.
_STEP_NUMBERS = ("rows", "sequences", "table_row")


@triton.jit(do_not_specialize=_STEP_NUMBERS, do_not_specialize_on_alignment=STEP_ARRAYS)
def _attend(
    out,  # [splits, T, HEADS, DIM]
    log_sums,  # [splits, T, HEADS]
    q,
    key,
    value,
    key_scales,
    value_scales,
    page_table,
    query_starts,
    contexts,
    first,
    last,
    ancestors,
    draft_base,
    sinks,
    logit_scale,  # makes logits of base 2
    value_scale,
    rows,
    sequences,
    q_row,
    q_head,
    key_page,
    value_page,
    key_scales_page,
    value_scales_page,
    table_row,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    LINES: tl.constexpr,
    PAGE: tl.constexpr,
    SINGLE: tl.constexpr,
):
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    ROWS: tl.constexpr = LINES // GROUP  # noqa: N806
    line = tl.arange(0, LINES)
    if SINGLE:
        sequence = block
        start = block
        end = block + 1
    else:
        sequence = sequence_of(query_starts, sequences, block, ROWS)
        begin = tl.load(query_starts + sequence)
        start = begin + (block - begin // ROWS - sequence) * ROWS
        end = tl.load(query_starts + sequence + 1)
        if start >= end:
            return
    row = start + line // GROUP
    head = kv_head * GROUP + line % GROUP
    real = (line < ROWS * GROUP) & (row < end)
    row_first = tl.load(first + row, mask=real, other=2147483647)
    row_last = tl.load(last + row, mask=real, other=-1)
    low = tl.min(row_first, 0)
    high = tl.max(row_last, 0) + 1
    if ancestors is not None:
        row_ancestors = tl.load(ancestors + row, mask=real, other=0)
        base = tl.load(draft_base + sequence)
        drafts = tl.max((row_ancestors != 0).to(tl.int32), 0) > 0
        low = tl.where(drafts, tl.minimum(low, base), low)
        high = tl.where(drafts, tl.load(contexts + sequence), high)

    d = tl.arange(0, BLOCK_DIM)
    n = tl.arange(0, PAGE)
    queries = tl.load(
        q + row.to(tl.int64)[:, None] * q_row + head[:, None] * q_head + d[None, :],
        mask=real[:, None] & (d < DIM)[None, :],
        other=0.0,
    )
    top = tl.full((LINES,), float("-inf"), tl.float32)
    total = tl.zeros((LINES,), tl.float32)
    if sinks is not None:
        # The sink is a position without a value, which the first split sees.
        sink = tl.load(sinks + head, mask=real & (split == 0), other=float("-inf")) * 1.4426950408889634
        total = tl.where(sink > float("-inf"), 1.0, 0.0)
        top = sink
    acc = tl.zeros((LINES, BLOCK_DIM), tl.float32)

    first_page = low // PAGE
    pages = tl.maximum(tl.cdiv(high, PAGE) - first_page, 0)
    share = tl.cdiv(pages, tl.num_programs(2))
    from_page = first_page + split * share
    to_page = first_page + tl.minimum((split + 1) * share, pages)
    for index in range(from_page, to_page):
        page = tl.load(page_table + sequence.to(tl.int64) * table_row + index).to(tl.int64)
        position = index * PAGE + n
        live = (position >= low) & (position < high)
        slot = kv_head * PAGE + n
        inside = live[:, None] & (d < DIM)[None, :]
        keys = tl.load(key + page * key_page + slot[:, None] * DIM + d[None, :], mask=inside, other=0.0)
        logits = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee") * logit_scale
        if key_scales is not None:
            logits *= tl.load(key_scales + page * key_scales_page + slot, mask=live, other=0.0)[None, :]
        seen = (position[None, :] >= row_first[:, None]) & (position[None, :] <= row_last[:, None])
        if ancestors is not None:
            seen = seen | is_ancestor(row_ancestors[:, None], (position - base)[None, :])
        logits = tl.where(seen, logits, float("-inf"))
        weights, keep, top, total = advance_softmax(logits, top, total)
        if value_scales is not None:
            scales = tl.load(value_scales + page * value_scales_page + slot, mask=live, other=0.0)
            weights *= scales[None, :]
        values = tl.load(value + page * value_page + slot[:, None] * DIM + d[None, :], mask=inside, other=0.0)
        acc = acc * keep[:, None]
        acc += tl.dot(weights.to(queries.dtype), values.to(queries.dtype), input_precision="ieee")

    divisor = tl.where(total == 0, 1.0, total)
    acc = acc * (value_scale / divisor)[:, None]
    at = (split.to(tl.int64) * rows + row) * HEADS + head
    tl.store(out + at[:, None] * DIM + d[None, :], acc, mask=real[:, None] & (d < DIM)[None, :])
    if tl.num_programs(2) > 1:
        log_sum = tl.where(total == 0, float("-inf"), top + tl.log2(divisor))
        tl.store(log_sums + at, log_sum, mask=real)


def _specialisation(lines: int, dim: int, kv: str, **optional: str) -> Specialisation:
    """With 4 query heads for each of 8 KV heads; `optional` gives the types of the pointers that may be None."""
    pointers = {
        "out": "*fp32" if lines == 16 else "*bf16",
        "log_sums": "*fp32",
        "q": "*bf16",
        "key": f"*{kv}",
        "value": f"*{kv}",
        **optional,
    }
    absent = {"key_scales", "value_scales", "ancestors", "draft_base", "sinks"} - optional.keys()
    return Specialisation(
        kernel=_attend,
        signature={
            **{name: f"{kind}:16" for name, kind in pointers.items()},
            **VISIBLE,
            **dict.fromkeys(("logit_scale", "value_scale"), "fp32"),
            **dict.fromkeys(("q_row", "q_head", "key_page", "value_page"), "i32:16"),
            **dict.fromkeys((*_STEP_NUMBERS, "key_scales_page", "value_scales_page"), "i32"),
        },
        constants={
            **dict.fromkeys(absent),
            "HEADS": 32,
            "GROUP": 4,
            "DIM": dim,
            "BLOCK_DIM": _block_dim(dim),
            "LINES": lines,
            "PAGE": PAGE_TOKENS,
            "SINGLE": lines == 16,
        },
        **_shape(lines, dim, 1 if kv == "fp8e4nv" else 2),
    )


_SCALES = {"key_scales": "*fp32", "value_scales": "*fp32"}

AOT = (
    *(_specialisation(16, dim, "bf16") for dim in (128, 192)),
    _specialisation(16, 64, "fp8e4nv", sinks="*fp32", **_SCALES),
    _specialisation(16, 256, "fp8e4nv"),
    _specialisation(32, 256, "bf16", **DRAFTS),
    _specialisation(64, 128, "bf16", **DRAFTS),
    _specialisation(64, 192, "bf16"),
    _specialisation(64, 256, "fp8e4nv"),
    _specialisation(128, 128, "bf16"),
    *(_specialisation(128, dim, "fp8e4nv", **_SCALES) for dim in (64, 128)),
)

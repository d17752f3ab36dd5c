"""`mla_decode` as one kernel: a program has some heads of one row and a part of the context.

Each latent is loaded once, as key and value. e4m3 and float32 are treated as by `paged_attention`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.planes import LatentView
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

_BLOCK = 32  # positions of an iteration


def mla_decode(
    q_content: Tensor,
    q_rope: Tensor,
    latent: LatentView,
    page_table: Tensor,
    rows: Rows,
    scale: float,
    selected: Tensor | None = None,
) -> Tensor:
    count, heads, content = q_content.shape
    rope = q_rope.shape[2]
    assert q_rope.shape == (rows.count, heads, rope)
    assert q_content.shape == (rows.count, heads, content)
    assert latent.content.shape[1:] == (PAGE_TOKENS, content)
    assert latent.rope.shape[1:] == (PAGE_TOKENS, rope)
    for n in (content, rope):
        assert n & (n - 1) == 0, f"{n} is no power of two"
    for tensor in (q_content, q_rope, latent.content, latent.rope, page_table):
        assert tensor.stride(-1) == 1
    assert latent.scales is None or latent.scales.stride(2) == 1
    assert latent.rope.stride(1) % 8 == 0
    assert selected is None or (selected.is_contiguous() and len(selected) == count)
    block_heads = _block_heads(heads, scaled=latent.scales is not None)
    head_blocks = triton.cdiv(heads, block_heads)
    blocks = count if rows.single else count + rows.sequences
    positions = page_table.shape[1] * PAGE_TOKENS if selected is None else selected.shape[1]
    splits = splits_of(blocks * head_blocks, positions) if count else 1
    dtype = q_content.dtype if splits == 1 else torch.float32
    out = torch.empty(splits, *q_content.shape, dtype=dtype, device=q_content.device)
    log_sums = torch.empty(splits, count, heads, dtype=torch.float32, device=q_content.device)
    if count:
        _attend[(blocks, head_blocks, splits)](
            out,
            log_sums,
            q_content,
            q_rope,
            latent.content,
            latent.rope,
            latent.scales,
            page_table,
            rows.query_starts,
            rows.contexts,
            rows.first,
            rows.last,
            rows.ancestors,
            rows.draft_base,
            selected,
            scale * latent.scale * math.log2(math.e),
            latent.scale,
            count,
            rows.sequences,
            0 if selected is None else selected.shape[1],
            *q_content.stride()[:2],
            *q_rope.stride()[:2],
            *latent.content.stride()[:2],
            latent.rope.stride(0),
            latent.rope.stride(1) // 8,
            *((0, 0) if latent.scales is None else latent.scales.stride()[:2]),
            page_table.stride(0),
            HEADS=heads,
            BLOCK_HEADS=block_heads,
            CONTENT=content,
            ROPE=rope,
            GROUPS=1 if latent.scales is None else latent.scales.shape[2],
            PAGE=PAGE_TOKENS,
            SINGLE=rows.single,
            BLOCK=_BLOCK,
            **_shape(block_heads),
        )
    return out[0] if splits == 1 else combine(out, log_sums, q_content.dtype)


def _block_heads(heads: int, *, scaled: bool) -> int:
    """Heads of a program. 32 over latents with scales of their own would spill 472 bytes a thread; 64 take other
    instructions, whose operands need no registers."""
    if heads <= 16:
        return 16
    return 32 if heads <= 32 and not scaled else 64


def _shape(block_heads: int) -> dict[str, int]:
    """Warps for block_heads x 512 sums, and how far ahead latents are loaded.

    Of up to 16 heads two programs fit on a processor, each with two blocks of latents in flight; more heads need all
    registers of one, and have the arithmetic to wait.
    """
    return {"num_warps": 4, "num_stages": 5} if block_heads <= 16 else {"num_warps": 8, "num_stages": 2}


# Numbers and arrays that differ from step to step, for whose sizes and addresses nothing shall be compiled anew.
_STEP_NUMBERS = ("rows", "sequences", "selections", "table_row")
_STEP_ARRAYS = (*STEP_ARRAYS, "selected")


@triton.jit(do_not_specialize=_STEP_NUMBERS, do_not_specialize_on_alignment=_STEP_ARRAYS)
def _attend(
    out,  # [splits, T, HEADS, CONTENT]
    log_sums,  # [splits, T, HEADS]
    q_content,
    q_rope,
    content,
    rope,
    scales,
    page_table,
    query_starts,
    contexts,
    first,
    last,
    ancestors,
    draft_base,
    selected,
    logit_scale,  # makes logits of base 2
    value_scale,
    rows,
    sequences,
    selections,
    q_content_row,
    q_content_head,
    q_rope_row,
    q_rope_head,
    content_page,
    content_token,
    rope_page,
    rope_token_8,  # in units of 8, which a row of 656 bytes is a multiple of, though not of 16
    scales_page,
    scales_token,
    table_row,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    CONTENT: tl.constexpr,
    ROPE: tl.constexpr,
    GROUPS: tl.constexpr,
    PAGE: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(2)
    if SINGLE:
        sequence = block
        row = block.to(tl.int64)
    else:
        sequence = sequence_of(query_starts, sequences, block, 1)
        row = (block - sequence).to(tl.int64)
        if row >= tl.load(query_starts + sequence + 1):
            return
    low = tl.load(first + row)
    high = tl.load(last + row) + 1
    row_last = high - 1
    row_first = low
    if ancestors is not None:
        row_ancestors = tl.load(ancestors + row)
        base = tl.load(draft_base + sequence)
        low = tl.where(row_ancestors != 0, tl.minimum(low, base), low)
        high = tl.where(row_ancestors != 0, tl.load(contexts + sequence), high)

    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    real = (head < HEADS)[:, None]
    wide = head.to(tl.int64)[:, None]  # each head may lie behind all rows of the one before
    c = tl.arange(0, CONTENT)[None, :]
    r = tl.arange(0, ROPE)[None, :]
    n = tl.arange(0, BLOCK)
    queries = tl.load(q_content + row * q_content_row + wide * q_content_head + c, mask=real, other=0.0)
    rotated = tl.load(q_rope + row * q_rope_row + wide * q_rope_head + r, mask=real, other=0.0)
    top = tl.full((BLOCK_HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_HEADS,), tl.float32)
    acc = tl.zeros((BLOCK_HEADS, CONTENT), tl.float32)

    table = page_table + sequence.to(tl.int64) * table_row
    if selected is None:
        first_step = low // BLOCK
        steps = tl.maximum(tl.cdiv(high, BLOCK) - first_step, 0)
    else:
        first_step = 0
        steps = tl.cdiv(selections, BLOCK)
    share = tl.cdiv(steps, tl.num_programs(2))
    for step in range(first_step + split * share, first_step + tl.minimum((split + 1) * share, steps)):
        if selected is None:
            position = step * BLOCK + n
        else:
            index = step * BLOCK + n
            position = tl.load(selected + row * selections + index, mask=index < selections, other=-1)
        seen = (position >= row_first) & (position <= row_last)
        if ancestors is not None:
            seen = seen | is_ancestor(row_ancestors, position - base)
        if selected is None:
            # All positions of the step lie in one page.
            page = tl.load(table + step * BLOCK // PAGE)
        else:
            page = tl.load(table + position // PAGE, mask=seen, other=0)
        page = page.to(tl.int64)
        token = position % PAGE
        # Rotary keys first: to convert them beside the content takes 80 registers more than there are.
        at = (page * rope_page + token * (rope_token_8 * 8))[:, None]
        rotary = tl.load(rope + at + r, mask=seen[:, None], other=0.0).to(queries.dtype)
        logits = tl.dot(rotated, tl.trans(rotary), input_precision="ieee")
        at = (page * content_page + token * content_token)[:, None]
        keys = tl.load(content + at + c, mask=seen[:, None], other=0.0)
        if scales is not None:
            at = (page * scales_page + token * scales_token)[:, None] + tl.arange(0, GROUPS)[None, :]
            by = tl.load(scales + at, mask=seen[:, None], other=0.0)
            grouped = tl.reshape(keys.to(tl.float32), (BLOCK, GROUPS, CONTENT // GROUPS)) * by[:, :, None]
            keys = tl.reshape(grouped, (BLOCK, CONTENT))
        keys = keys.to(queries.dtype)
        logits = tl.dot(queries, tl.trans(keys), logits, input_precision="ieee") * logit_scale
        logits = tl.where(seen[None, :], logits, float("-inf"))
        weights, keep, top, total = advance_softmax(logits, top, total)
        acc = acc * keep[:, None]
        acc = tl.dot(weights.to(queries.dtype), keys, acc, input_precision="ieee")

    divisor = tl.where(total == 0, 1.0, total)
    acc = acc * (value_scale / divisor)[:, None]
    line = (split.to(tl.int64) * rows + row) * HEADS + head
    tl.store(out + line[:, None] * CONTENT + c, acc, mask=real)
    if tl.num_programs(2) > 1:
        log_sum = tl.where(total == 0, float("-inf"), top + tl.log2(divisor))
        tl.store(log_sums + line, log_sum, mask=head < HEADS)


def _specialisation(
    heads: int, kv: str, rope: str, single: bool = True, /, **optional: str
) -> Specialisation:
    """Of DeepSeek's dimensions; `optional` gives the types of the pointers that may be None."""
    block_heads = _block_heads(heads, scaled="scales" in optional)
    pointers = {
        **dict.fromkeys(("out", "log_sums"), "*fp32"),
        **dict.fromkeys(("q_content", "q_rope"), "*bf16"),
        "content": f"*{kv}",
        "rope": f"*{rope}",
        **optional,
    }
    queries = ("q_content_row", "q_content_head", "q_rope_row", "q_rope_head")
    latents = ("content_page", "content_token", "rope_page")
    return Specialisation(
        kernel=_attend,
        signature={
            **{name: f"{kind}:16" for name, kind in pointers.items()},
            **VISIBLE,
            **dict.fromkeys(("logit_scale", "value_scale"), "fp32"),
            **dict.fromkeys((*queries, *latents), "i32:16"),
            **dict.fromkeys((*_STEP_NUMBERS, "rope_token_8", "scales_page", "scales_token"), "i32"),
        },
        constants={
            **dict.fromkeys({"scales", "ancestors", "draft_base", "selected"} - optional.keys()),
            "HEADS": heads,
            "BLOCK_HEADS": block_heads,
            "CONTENT": 512,
            "ROPE": 64,
            "GROUPS": 4 if "scales" in optional else 1,
            "PAGE": PAGE_TOKENS,
            "SINGLE": single,
            "BLOCK": _BLOCK,
        },
        **_shape(block_heads),
    )


_SCALES = {"scales": "*fp32"}
_SELECTED = {"selected": "*i32"}

AOT = (
    *(_specialisation(heads, "bf16", "bf16") for heads in (8, 32)),
    *(_specialisation(heads, "fp8e4nv", "fp8e4nv") for heads in (8, 128)),
    _specialisation(32, "fp8e4nv", "bf16", **_SCALES),
    _specialisation(64, "bf16", "bf16", False, **DRAFTS),
    _specialisation(8, "fp8e4nv", "bf16", False, **_SCALES, **_SELECTED),
    _specialisation(128, "fp8e4nv", "bf16", False, **_SCALES, **_SELECTED, **DRAFTS),
)

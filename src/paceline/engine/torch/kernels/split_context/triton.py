"""What the kernels share that split the context: arrays of a step, softmax in steps, and the sum of the parts."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation
from paceline.engine.torch.kernels.split_context import MOST_SPLITS

VISIBLE = dict.fromkeys(("page_table", "query_starts", "contexts", "first", "last"), "*i32")
"""Types of the arrays that say what the rows of a step see."""
DRAFTS = {"ancestors": "*i64", "draft_base": "*i32"}
"""And of those that are None in a step without drafts."""
STEP_ARRAYS = (*VISIBLE, *DRAFTS)
"""They differ from step to step: nothing shall be compiled anew for their addresses."""
_MOST: int = triton.next_power_of_2(MOST_SPLITS)
_STEP = 16


def combine(partial: Tensor, log_sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Weigh the results of each split by its share of the softmax.

    partial: float32 [splits, T, heads, dim], contiguous, what attention to the split alone gives
    log_sums: float32 [splits, T, heads], contiguous, log2 of the split's softmax denominator; -inf where it saw nothing
    """
    splits, rows, heads, dim = partial.shape
    assert splits <= _MOST
    assert partial.is_contiguous()
    assert log_sums.is_contiguous()
    out = torch.empty(rows, heads, dim, dtype=dtype, device=partial.device)
    if rows:
        _combine[(rows * heads,)](
            out, partial, log_sums, splits, rows * heads,
            DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), MOST=_MOST, STEP=_STEP,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=("splits", "lines"))
def _combine(
    out, partial, log_sums, splits, lines,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MOST: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One line; STEP of at most MOST splits are loaded together, for one by one their latencies would add up."""
    line = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_DIM)[None, :]
    every = tl.arange(0, MOST)
    top = tl.max(tl.load(log_sums + every.to(tl.int64) * lines + line, every < splits, float("-inf")), 0)
    # Where no split saw anything, every weight below becomes 0 instead of NaN.
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.zeros((STEP,), tl.float32)
    acc = tl.zeros((STEP, BLOCK_DIM), tl.float32)
    for start in range(0, splits, STEP):
        split = start + tl.arange(0, STEP)
        at = split.to(tl.int64) * lines + line
        weights = tl.exp2(tl.load(log_sums + at, split < splits, float("-inf")) - top)
        acc += weights[:, None] * tl.load(
            partial + at[:, None] * DIM + d, (split < splits)[:, None] & (d < DIM), 0.0
        )
        total += weights
    whole = tl.sum(total, 0)
    result = tl.sum(acc, 0)[None, :] / tl.where(whole == 0, 1.0, whole)
    tl.store(out + line * DIM + d, result.to(out.dtype.element_ty), d < DIM)


@triton.jit
def sequence_of(query_starts, sequences, block, ROWS: tl.constexpr):
    """The sequence that the rows of `block` belong to, when none shares a block of ROWS rows with another.

    Sequence s begins with block `query_starts[s] // ROWS + s`, which leaves it at least as many as it needs.
    """
    low = 0
    high = sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_starts + middle) // ROWS + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def is_ancestor(ancestors, draft):
    """Whether bit `draft` of the int64 `ancestors` is set; what is no number of a draft is no ancestor."""
    # Bit 63 is always clear.
    bit = tl.where((draft >= 0) & (draft < 63), draft, 63).to(tl.int64)
    return ((ancestors >> bit) & 1) != 0


@triton.jit
def advance_softmax(logits, top, total):
    """Take in logits [lines, n] of base 2, where top and total are the largest and the denominator so far.

    Gives their weights, what earlier sums are to be multiplied by, and the new top and total.
    """
    new_top = tl.maximum(top, tl.max(logits, 1))
    # A line that has seen nothing yet keeps -inf, and -inf - -inf would be NaN.
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(logits - finite_top[:, None])
    keep = tl.exp2(top - finite_top)
    return weights, keep, new_top, total * keep + tl.sum(weights, 1)


AOT = tuple(
    Specialisation(
        kernel=_combine,
        signature={
            "out": "*bf16:16",
            "partial": "*fp32:16",
            "log_sums": "*fp32:16",
            "splits": "i32",
            "lines": "i32",
        },
        constants={"DIM": dim, "BLOCK_DIM": dim, "MOST": _MOST, "STEP": _STEP},
    )
    for dim in (128, 512)
)

"""Rotation on a GPU: a program turns some heads of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation


@triton.jit
def _rope(
    x, cos, sin, heads, pairs, x_row, x_head,
    STEP: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """STEP: 2 for neighbours, 1 for halves."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, PAIRS)
    mask = (head < heads)[:, None] & (pair < pairs)[None, :]
    c = tl.load(cos + row * pairs + pair, pair < pairs, 0.0)[None, :]
    s = tl.load(sin + row * pairs + pair, pair < pairs, 0.0)[None, :]
    first = x + row * x_row + head.to(tl.int64)[:, None] * x_head + (pair * STEP)[None, :]
    second = first + (1 if STEP == 2 else pairs)
    a, b = tl.load(first, mask, 0.0).to(tl.float32), tl.load(second, mask, 0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), mask)
    tl.store(second, (b * c + a * s).to(x.dtype.element_ty), mask)


def rope_(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
    """See the package."""
    (rows, heads, head_dim), pairs = x.shape, cos.shape[1]
    assert x.stride(2) == 1 and 2 * pairs <= head_dim
    assert cos.shape == sin.shape == (rows, pairs) and cos.is_contiguous() and sin.is_contiguous()
    assert cos.dtype == sin.dtype == torch.float32
    _rope[(rows, triton.cdiv(heads, _HEADS))](
        x, cos, sin, heads, pairs, x.stride(0), x.stride(1),
        STEP=2 if interleaved else 1, HEADS=_HEADS, PAIRS=triton.next_power_of_2(pairs),
    )  # fmt: skip


_HEADS = 16

AOT = tuple(
    Specialisation(
        kernel=_rope,
        signature={"x": "*bf16:16", "cos": "*fp32:16", "sin": "*fp32:16", "heads": "i32", "pairs": "i32:16",
                   "x_row": "i32:16", "x_head": "i32:16"},
        constants={"STEP": step, "HEADS": _HEADS, "PAIRS": 64},
    )
    for step in (1, 2)
)  # fmt: skip

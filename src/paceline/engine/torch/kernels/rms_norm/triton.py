"""Normalisation on a GPU: a program holds a whole row in registers, so that it is read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation


@triton.jit
def _rms_norm(
    x, residual, weight, out, total, eps, heads, dim, x_row, x_head, weight_head,
    ADD: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One head of one row; out and total are contiguous, residual is where ADD."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    mask = column < dim
    values = tl.load(x + row * x_row + head * x_head + column, mask, 0.0)
    place = (row * heads + head) * dim + column
    if ADD:
        values = (values.to(tl.float32) + tl.load(residual + place, mask, 0.0).to(tl.float32)).to(
            values.dtype
        )
        tl.store(total + place, values, mask)
    wide = values.to(tl.float32)
    normed = wide * tl.math.rsqrt(tl.sum(wide * wide) / dim + eps)
    if WEIGHTED:
        normed *= tl.load(weight + head * weight_head + column, mask, 0.0).to(tl.float32)
    tl.store(out + place, normed.to(values.dtype), mask)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See the package."""
    assert x.stride(-1) == 1
    rows, dim = len(x), x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    assert weight is None or (weight.shape in ((dim,), (heads, dim)) and weight.is_contiguous())
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _rms_norm[(rows, heads)](
        x, x, x if weight is None else weight, out, out, eps, heads, dim,
        x.stride(0), x.stride(1) if x.dim() == 3 else 0, dim if weight is not None and weight.dim() == 2 else 0,
        ADD=False, WEIGHTED=weight is not None, **_block(dim),
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See the package. The residual is contiguous."""
    rows, dim = x.shape
    assert x.stride(1) == 1 and residual.shape == x.shape and residual.is_contiguous()
    assert residual.dtype == x.dtype and weight.shape == (dim,) and weight.is_contiguous()
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _rms_norm[(rows, 1)](
        x,
        residual,
        weight,
        out,
        total,
        eps,
        1,
        dim,
        x.stride(0),
        0,
        0,
        ADD=True,
        WEIGHTED=True,
        **_block(dim),
    )
    return out, total


def _block(dim: int) -> dict[str, int]:
    block = triton.next_power_of_2(dim)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


AOT = tuple(
    Specialisation(
        kernel=_rms_norm,
        signature={
            "x": "*bf16:16", "residual": "*bf16:16", "weight": "*bf16:16", "out": "*bf16:16", "total": "*bf16:16",
            "eps": "fp32", "heads": "i32", "dim": "i32:16", "x_row": "i32:16", "x_head": "i32:16",
            "weight_head": "i32:16",
        },
        constants={"ADD": add, "WEIGHTED": weighted, "BLOCK": block},
        num_warps=_block(block)["num_warps"],
    )
    for add, weighted, block in ((True, True, 8192), (False, True, 128), (False, False, 128))
)  # fmt: skip

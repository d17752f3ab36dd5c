"""`changed` as a kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.engine.torch.kernels.aot import Specialisation

_BLOCK = 1024


def changed(pages: Tensor, tags: Tensor, table: Tensor) -> Tensor:
    assert pages.dtype == tags.dtype == table.dtype == torch.int64
    assert pages.shape == tags.shape
    assert pages.is_contiguous()
    assert tags.is_contiguous()
    assert table.is_contiguous()
    out = torch.empty(pages.shape, dtype=torch.bool, device=pages.device)
    n = len(pages)
    if n:
        _changed[(triton.cdiv(n, _BLOCK),)](out, pages, tags, table, n, BLOCK=_BLOCK)
    return out


@triton.jit(do_not_specialize=("n",), do_not_specialize_on_alignment=("pages", "tags"))
def _changed(out, pages, tags, table, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    page = tl.load(pages + i, mask=i < n, other=0)
    tag = tl.load(table + page, mask=i < n, other=0)
    tl.store(out + i, tag != tl.load(tags + i, mask=i < n, other=0), mask=i < n)


AOT = (
    Specialisation(
        kernel=_changed,
        signature={
            "out": "*i1:16",
            "pages": "*i64",
            "tags": "*i64",
            "table": "*i64:16",
            "n": "i32",
        },
        constants={"BLOCK": _BLOCK},
    ),
)

"""Attention of the rows of a step over keys and values in pages, for decoding, drafts and prompts alike."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.paged_attention import naive
from paceline.engine.torch.kernels.planes import PlaneView
from paceline.engine.torch.kernels.rows import Rows


def paged_attention(
    q: Tensor,
    key: PlaneView,
    value: PlaneView,
    page_table: Tensor,
    rows: Rows,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q K^T) V for each row over the positions that it sees: [T, heads, dim] of q's dtype.

    q: [T, heads, dim] float32 or bfloat16, stride 1 in dim; successive heads / kv_heads query heads share a KV head
    key, value: planes of kv_heads heads. Keys and values are summed up in float32 whatever their dtype; positions that
        no row sees are not read, and may be NaN.
    page_table: int32 [S, P], pages of each sequence in order; entries of which no row sees a position may be anything
    sinks: float32 [heads]; a logit that joins the softmax of each row without a value (gpt-oss)

    A row that sees nothing gets zeros where there are sinks, and on CUDA; else NaN.
    """
    if kernels.triton_runs(q.device):
        from paceline.engine.torch.kernels.paged_attention import triton

        return triton.paged_attention(q, key, value, page_table, rows, scale, sinks)
    return naive.paged_attention(q, key, value, page_table, rows, scale, sinks)

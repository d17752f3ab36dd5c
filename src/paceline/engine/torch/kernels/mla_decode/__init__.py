"""Absorbed attention over latents in pages (DeepSeek-V2, 2.1.2): the heads share one latent, which is key and value."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.mla_decode import naive
from paceline.engine.torch.kernels.planes import LatentView
from paceline.engine.torch.kernels.rows import Rows


def mla_decode(
    q_content: Tensor,
    q_rope: Tensor,
    latent: LatentView,
    page_table: Tensor,
    rows: Rows,
    scale: float,
    selected: Tensor | None = None,
) -> Tensor:
    """softmax(scale * (q_content C^T + q_rope R^T)) C for each row: [T, heads, C] of q's dtype, before W_v.

    q_content: [T, heads, C], queries multiplied by W_k; stride 1 in C
    q_rope: [T, heads, R]; stride 1 in R. On CUDA, C and R are powers of two.
    page_table: int32 [S, P], as for `paged_attention`, and what no row sees is not read here either
    selected: int32 [T, K]; of the positions that a row sees only these count, each named once; -1 names none (DeepSeek
        sparse attention)

    A row that sees nothing gets zeros on CUDA, else NaN.
    """
    if kernels.triton_runs(q_content.device):
        from paceline.engine.torch.kernels.mla_decode import triton

        return triton.mla_decode(q_content, q_rope, latent, page_table, rows, scale, selected)
    return naive.mla_decode(q_content, q_rope, latent, page_table, rows, scale, selected)

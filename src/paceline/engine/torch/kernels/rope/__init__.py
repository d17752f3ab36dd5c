"""Rotary position embedding (Su et al. 2021)."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.rope import naive


def rope_(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
    """Rotate the first dim values of each head of x in place, computed in float32.

    x: [T, heads, head_dim] of any float type, a view with any strides of rows and heads and stride 1 in head_dim
    cos, sin: float32 [T, dim / 2], dim even and at most head_dim; value i belongs to the i-th pair
    interleaved: pairs are neighbours (2i, 2i + 1), as in DeepSeek-V3 and Llama 4; otherwise (i, i + dim / 2)
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.rope.triton import rope_ as on_gpu

        on_gpu(x, cos, sin, interleaved=interleaved)
    else:
        naive.rope_(x, cos, sin, interleaved=interleaved)

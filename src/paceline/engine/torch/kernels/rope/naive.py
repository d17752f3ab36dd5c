"""Rotation in plain PyTorch: the reference, and what a CPU runs."""

from torch import Tensor


def rope_(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> None:
    """See the package."""
    dim = 2 * cos.shape[-1]
    if interleaved:
        first, second = x[..., 0:dim:2], x[..., 1:dim:2]
    else:
        first, second = x[..., : dim // 2], x[..., dim // 2 : dim]
    cos, sin = cos[:, None], sin[:, None]
    turned = first * cos - second * sin
    second.copy_(second * cos + first * sin)
    first.copy_(turned)

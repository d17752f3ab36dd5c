"""Root mean square normalisation (Zhang and Sennrich 2019), and with the sum of a residual stream before it."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.rms_norm import naive


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32.

    x: [T, dim] or [T, heads, dim] of any float type, with stride 1 in dim
    weight: [dim], or [heads, dim] for one of each head, or None for 1
    returns a new tensor like x
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.rms_norm.triton import rms_norm as on_gpu

        return on_gpu(x, weight, eps)
    return naive.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns `rms_norm(x + residual, weight, eps)` and x + residual, rounded to its type before it is normalised.

    x, residual: [T, dim] of the same float type; weight: [dim]
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.rms_norm.triton import add_rms_norm as on_gpu

        return on_gpu(x, residual, weight, eps)
    return naive.add_rms_norm(x, residual, weight, eps)

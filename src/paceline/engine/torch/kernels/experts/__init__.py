"""The routed experts of a layer: every row goes through its own k of E small networks."""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.experts import naive
from paceline.engine.torch.kernels.experts.formats import (
    Activation,
    DenseExperts,
    ExpertLayer,
    Experts,
    Fp8Experts,
    Int4Experts,
)

__all__ = ["Activation", "DenseExperts", "ExpertLayer", "Experts", "Fp8Experts", "Int4Experts", "experts"]


def experts(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    """Sum over a row's experts e of weight_e * down_e(act(gate_up_e(x))).

    x: [T, H] of any float type
    expert_ids: int64 [T, k], each below E; those of a row differ
    weights: float32 [T, k]
    returns [T, H] in the type of x

    On a GPU, what e4m3 weights are multiplied by is rounded to e4m3 too, as in `kernels.fp8_linear`:
    `naive.experts_w8a8` states it.
    """
    if kernels.triton_runs(x.device):
        from paceline.engine.torch.kernels.experts.triton import experts as on_gpu

        return on_gpu(x, expert_ids, weights, layer)
    return naive.experts(x, expert_ids, weights, layer)

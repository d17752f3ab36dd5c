"""Experts in plain PyTorch: the reference, and what a CPU runs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from paceline.engine.torch.kernels.experts.formats import Activation, ExpertLayer, Experts, Fp8Experts
from paceline.engine.torch.kernels.fp8_linear import naive as fp8

# Rows [rows, in] by the matrix of an expert -> [rows, out].
_Product = Callable[[Tensor, Experts, int], Tensor]


def experts(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    """See the package. Only experts that have rows are expanded; the sum over a row's experts is in float32."""
    return _experts(x, expert_ids, weights, layer, _multiply)


def experts_w8a8(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    """The same as a GPU computes it: what e4m3 weights are multiplied by is rounded to e4m3."""
    return _experts(x, expert_ids, weights, layer, _multiply_w8a8)


def _experts(
    x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer, multiply: _Product
) -> Tensor:
    ids = expert_ids.flatten()
    order = ids.argsort(stable=True)
    tokens = order // expert_ids.shape[1]
    shares = weights.flatten()[order, None].float()
    counts = ids.bincount(minlength=layer.gate_up.shape[0]).tolist()
    out = torch.zeros_like(x, dtype=torch.float32)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = slice(start, start + count)
        start += count
        inputs = x[tokens[rows]]
        if layer.scale_input:
            inputs = (inputs * shares[rows]).to(x.dtype)
        gate_up = _biased(multiply(inputs, layer.gate_up, expert), layer.gate_up_bias, expert)
        inner = activate(gate_up, layer.activation)
        outputs = _biased(multiply(inner, layer.down, expert), layer.down_bias, expert).float()
        out.index_add_(0, tokens[rows], outputs if layer.scale_input else outputs * shares[rows])
    return out.to(x.dtype)


def _multiply(x: Tensor, matrix: Experts, expert: int) -> Tensor:
    return matrix.product(x, expert)


def _multiply_w8a8(x: Tensor, matrix: Experts, expert: int) -> Tensor:
    if not isinstance(matrix, Fp8Experts):
        return _multiply(x, matrix, expert)
    return fp8.fp8_linear_w8a8(x, matrix.weight[expert], matrix.scales[expert], matrix.block)


def _biased(x: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    return x if bias is None else x.add_(bias[expert])


def activate(gate_up: Tensor, activation: Activation) -> Tensor:
    """[rows, 2 I] -> [rows, I]"""
    if activation == "silu":
        gate, up = gate_up.chunk(2, -1)
        return silu(gate) * up
    gate = gate_up[..., ::2].clamp(max=7.0)
    up = gate_up[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1.0) * gate * torch.sigmoid(1.702 * gate)

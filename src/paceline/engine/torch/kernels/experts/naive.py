"""Experts in plain PyTorch: the reference, and what a CPU runs."""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from paceline.engine.torch.kernels.experts.formats import Activation, ExpertLayer


def experts(x: Tensor, expert_ids: Tensor, weights: Tensor, layer: ExpertLayer) -> Tensor:
    """See the package. Only experts that have rows are expanded; the sum over a row's experts is in float32."""
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
        outputs = _expert(inputs, expert, layer).float()
        out.index_add_(0, tokens[rows], outputs if layer.scale_input else outputs * shares[rows])
    return out.to(x.dtype)


def _expert(x: Tensor, expert: int, layer: ExpertLayer) -> Tensor:
    gate_up = linear(
        x, layer.gate_up.dequantised(expert, x.dtype), _bias(layer.gate_up_bias, expert, x.dtype)
    )
    inner = activate(gate_up, layer.activation)
    return linear(inner, layer.down.dequantised(expert, x.dtype), _bias(layer.down_bias, expert, x.dtype))


def _bias(bias: Tensor | None, expert: int, dtype: torch.dtype) -> Tensor | None:
    return None if bias is None else bias[expert].to(dtype)


def activate(gate_up: Tensor, activation: Activation) -> Tensor:
    """[rows, 2 I] -> [rows, I]"""
    if activation == "silu":
        gate, up = gate_up.chunk(2, -1)
        return silu(gate) * up
    gate = gate_up[..., ::2].clamp(max=7.0)
    up = gate_up[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1.0) * gate * torch.sigmoid(1.702 * gate)

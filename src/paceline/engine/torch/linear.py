"""Matrix products with weights in the order that the processor's kernels want."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Map: TypeAlias = Callable[[Tensor], Tensor]
"""[rows, in] -> [rows, out]"""


class Linear:
    """y = x W^T + b, for a weight that nobody else reads."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` is [out, in]; on a CPU it is replaced by a reordered copy."""
        self._bias = bias
        self._packed = _has_onednn(weight)
        # A plain weight is reordered by oneDNN in every call, or multiplied by MKL, which is slower still. Measured on
        # two Zen 4 cores, the 120 matrices of a 135M model, one row: bfloat16 16.1 -> 10.8 ms, float32 38 -> 22 ms.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, 1) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]"""
        return _product(x, self._weight, self._bias, self._packed)


class TiedHead:
    """Logits by the embedding matrix, which has to stay in plain order for look-ups."""

    def __init__(self, embedding: Tensor) -> None:
        self._weight = embedding
        self._onednn = _has_onednn(embedding)

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, hidden] -> [rows, vocab]"""
        return _product(x, self._weight, None, self._onednn)


def _has_onednn(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
    if onednn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return functional.linear(x, weight, bias)

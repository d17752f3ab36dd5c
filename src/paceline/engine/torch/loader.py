"""Stored tensors become tensors of the compute dtype on the engine's device."""

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from paceline.engine.interface import Progress
from paceline.engine.torch.kernels.experts import DenseExperts, ExpertLayer
from paceline.engine.torch.linear import Linear, Map
from paceline.model.config import ExpertMlp, InputSigmoidRouter
from paceline.model.weights import Stored

# Values converted at a time: the float32 copy of a block stays in the cache.
_BLOCK = 1 << 18


class Loader:
    """Converts tensors and reports how many stored bytes are done. Names are those of `model.parts`."""

    def __init__(
        self, stored: Mapping[str, Stored], dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        self._stored = stored
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total = sum(t.nbytes for t in stored.values())
        self._done = 0

    def has(self, name: str) -> bool:
        return name in self._stored

    def tensor(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensors `names`, one below the other; in another `dtype` where rounding would change decisions."""
        parts = [self._stored[name] for name in names]
        rows = sum(t.shape[0] for t in parts)
        joined = torch.empty((rows, *parts[0].shape[1:]), dtype=dtype or self._dtype)
        for target, part in zip(torch.split(joined, [t.shape[0] for t in parts]), parts, strict=True):
            _convert(part, target)
            self._done += part.nbytes
            self._progress(self._done, self._total)
        return joined.to(self._device)

    def matrix(self, *modules: str) -> Map:
        """The linear maps `modules`, with their biases if they have any: results lie one behind the other."""
        biases = [m + ".bias" for m in modules if self.has(m + ".bias")]
        return Linear(
            self.tensor(*(m + ".weight" for m in modules)), self.tensor(*biases) if biases else None
        )

    def experts(self, name: str, mlp: ExpertMlp) -> ExpertLayer:
        """The experts `name`0 to `name`E-1, stacked."""
        fused = mlp.activation == "gpt_oss"
        gate_up = ("gate_up_proj",) if fused else ("gate_proj", "up_proj")

        def stack(kind: str, *modules: str) -> Tensor:
            joined = self.tensor(*(f"{name}{e}.{m}.{kind}" for e in range(mlp.experts) for m in modules))
            return joined.view(mlp.experts, -1, *joined.shape[1:])

        return ExpertLayer(
            gate_up=DenseExperts(stack("weight", *gate_up)),
            down=DenseExperts(stack("weight", "down_proj")),
            activation=mlp.activation,
            gate_up_bias=stack("bias", *gate_up) if fused else None,
            down_bias=stack("bias", "down_proj") if fused else None,
            scale_input=isinstance(mlp.router, InputSigmoidRouter),
        )


def _convert(stored: Stored, target: Tensor) -> None:
    """Fill `target`, which has the shape of `stored`."""
    rows, columns = prod(stored.shape[:-1]), stored.shape[-1]
    target = target.view(rows, columns)
    same_bits = stored.dtype == "BF16" and target.dtype == torch.bfloat16
    stride = max(1, _BLOCK // columns)
    for start in range(0, rows, stride):
        stop = min(start + stride, rows)
        if same_bits:
            np.copyto(target[start:stop].view(torch.int16).numpy(), stored.raw(start, stop).view("<i2"))
        else:
            # Float32 files are read in place, and torch warns of memory that it may not write.
            values = np.require(stored.float32(start, stop), requirements="W")
            target[start:stop] = torch.from_numpy(values)

"""Stored tensors become tensors and linear maps on the engine's device."""

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.engine.interface import Progress
from paceline.engine.torch import gather
from paceline.engine.torch.kernels.experts import ExpertLayer, Experts
from paceline.engine.torch.linear import Map
from paceline.engine.torch.stored_matrix import read_matrix, stack_experts
from paceline.model.config import ExpertMlp, InputSigmoidRouter
from paceline.model.weights import Stored


class Loader:
    """Converts tensors and reports how many stored bytes are done. Names are those of `model.parts`."""

    def __init__(
        self, stored: Mapping[str, Stored], dtype: torch.dtype, device: torch.device, progress: Progress
    ) -> None:
        """`dtype` is that of arithmetic, and of all weights that are not quantised."""
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
        joined = gather.dense(parts, dtype or self._dtype).to(self._device)
        self._count(parts)
        return joined

    def matrix(self, *modules: str) -> Map:
        """The linear maps `modules`, with their biases if they have any: results lie one behind the other."""
        parts = [self._stored[m + ".weight"] for m in modules]
        biases = [m + ".bias" for m in modules if self.has(m + ".bias")]
        bias = self.tensor(*biases) if biases else None
        found = read_matrix(parts, self._dtype, self._device, bias)
        self._count(parts)
        return found

    def experts(self, name: str, mlp: ExpertMlp) -> ExpertLayer:
        """The experts `name`0 to `name`E-1, stacked."""
        fused = mlp.activation == "gpt_oss"
        gate_up = ("gate_up_proj",) if fused else ("gate_proj", "up_proj")

        def stack(*modules: str) -> Experts:
            parts = [[self._stored[f"{name}{e}.{m}.weight"] for m in modules] for e in range(mlp.experts)]
            found = stack_experts(parts, self._dtype, self._device)
            self._count([part for each in parts for part in each])
            return found

        def bias(module: str) -> Tensor | None:
            if not fused:
                return None
            return self.tensor(*(f"{name}{e}.{module}.bias" for e in range(mlp.experts))).view(
                mlp.experts, -1
            )

        return ExpertLayer(
            gate_up=stack(*gate_up),
            down=stack("down_proj"),
            activation=mlp.activation,
            gate_up_bias=bias("gate_up_proj"),
            down_bias=bias("down_proj"),
            scale_input=isinstance(mlp.router, InputSigmoidRouter),
        )

    def _count(self, parts: list[Stored]) -> None:
        self._done += sum(part.nbytes for part in parts)
        self._progress(self._done, self._total)

"""A mixture of experts in place of a layer's MLP."""

from dataclasses import dataclass

from torch import Tensor

from paceline.engine.torch.kernels.experts import ExpertLayer, experts
from paceline.engine.torch.linear import Map
from paceline.engine.torch.routers import route
from paceline.model.config import ExpertMlp


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """Every row goes through the experts that its router chooses, and through the shared one.

    gate: [T, hidden] float32 -> logits of all experts, float32
    correction: float32 [experts]; see `routers.route`
    """

    config: ExpertMlp
    gate: Map
    correction: Tensor | None
    experts: ExpertLayer
    shared: Map | None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        ids, weights = route(self.config, self.gate(x.float()), self.correction)
        routed = experts(x, ids, weights, self.experts)
        return routed if self.shared is None else routed.add_(self.shared(x))

"""The dense MLP of a layer."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import silu

from paceline.engine.torch.linear import Map


@dataclass(frozen=True, slots=True)
class SwiGlu:
    """down(silu(gate(x)) * up(x)) (Shazeer 2020); `gate_up` gives the values of both, one behind the other."""

    gate_up: Map
    down: Map

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(silu(gate).mul_(up))

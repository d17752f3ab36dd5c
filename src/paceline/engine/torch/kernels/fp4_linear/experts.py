"""4-bit floats of a layer's experts, stacked."""

from dataclasses import dataclass

from torch import Tensor

from paceline.engine.torch.kernels.fp4_linear import naive


@dataclass(frozen=True, slots=True)
class Fp4Experts:
    """4-bit floats, as `kernels.fp4_linear` has them.

    codes: uint8 [E, out, in/2]
    scales: [E, out, in/group], float8_e4m3fn or float8_e8m0fnu
    factors: float32 [E, out]
    """

    codes: Tensor
    scales: Tensor
    factors: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, out, in)"""
        experts, rows, octets = self.codes.shape
        return experts, rows, 2 * octets

    def product(self, x: Tensor, expert: int) -> Tensor:
        """x [rows, in] -> [rows, out] by the matrix of `expert`"""
        return naive.fp4_linear(x, self.codes[expert], self.scales[expert], self.factors[expert])

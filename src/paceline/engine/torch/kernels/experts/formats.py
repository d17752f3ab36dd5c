"""The matrices of a layer's experts, stacked, in each precision that they are computed from."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import linear

from paceline.engine.torch.kernels.fp4_linear.experts import Fp4Experts
from paceline.engine.torch.kernels.fp8_linear import naive as fp8
from paceline.engine.torch.kernels.w4a16 import naive as int4

Activation = Literal["silu", "gpt_oss"]


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """weight: [E, out, in] of any float type"""

    weight: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, out, in)"""
        experts, rows, columns = self.weight.shape
        return experts, rows, columns

    def product(self, x: Tensor, expert: int) -> Tensor:
        """x [rows, in] -> [rows, out] by the matrix of `expert`"""
        return linear(x, self.weight[expert])


@dataclass(frozen=True, slots=True)
class Int4Experts:
    """4-bit integers, as `kernels.w4a16` has them.

    packed: int32 [E, out, in/8]
    scales: [E, out, in/group] of any float type
    zeros: uint8 [E, out, in/group], or None for 8 throughout
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, out, in)"""
        experts, rows, words = self.packed.shape
        return experts, rows, 8 * words

    def product(self, x: Tensor, expert: int) -> Tensor:
        """x [rows, in] -> [rows, out] by the matrix of `expert`"""
        zeros = None if self.zeros is None else self.zeros[expert]
        return int4.w4a16_linear(x, self.packed[expert], self.scales[expert], zeros)


@dataclass(frozen=True, slots=True)
class Fp8Experts:
    """8-bit floats, as `kernels.fp8_linear` has them.

    weight: float8_e4m3fn [E, out, in]
    scales: float32 [E, ceil(out / block[0]), ceil(in / block[1])]
    """

    weight: Tensor
    scales: Tensor
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, out, in)"""
        experts, rows, columns = self.weight.shape
        return experts, rows, columns

    def product(self, x: Tensor, expert: int) -> Tensor:
        """x [rows, in] -> [rows, out] by the matrix of `expert`"""
        return fp8.fp8_linear(x, self.weight[expert], self.scales[expert], self.block)


Experts = DenseExperts | Int4Experts | Fp8Experts | Fp4Experts


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Two matrices for each of E experts, and what happens between them.

    gate_up: out = 2 I, in = H
    down: out = H, in = I
    activation: "silu": the rows of gate come before those of up, and silu(gate) * up goes into `down`.
        "gpt_oss": gate is the even rows, at most 7, and up the odd ones, within +-7;
        (up + 1) * gate * sigmoid(1.702 gate) goes into `down`.
    gate_up_bias, down_bias: [E, 2 I] and [E, H]
    scale_input: the routing weight multiplies an expert's input, as in Llama 4, instead of its output
    """

    gate_up: Experts
    down: Experts
    activation: Activation = "silu"
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    scale_input: bool = False

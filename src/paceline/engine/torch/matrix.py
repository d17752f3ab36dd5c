"""Linear maps in the precision of their files, as a GPU has them: the kernels multiply by weights as they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.engine.torch.kernels.fp4_linear import fp4_linear
from paceline.engine.torch.kernels.fp8_linear import fp8_linear
from paceline.engine.torch.kernels.w4a16 import w4a16_linear
from paceline.engine.torch.linear import Map


@dataclass(frozen=True, slots=True)
class Int4:
    """4-bit integers, as `kernels.w4a16` has them; column i multiplies input `columns[i]`, int64 [in], if given."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    columns: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]"""
        ordered = x if self.columns is None else x[:, self.columns]
        return w4a16_linear(ordered, self.packed, self.scales, self.zeros)


@dataclass(frozen=True, slots=True)
class Fp8:
    """8-bit floats, as `kernels.fp8_linear` has them."""

    weight: Tensor
    scales: Tensor
    block: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]"""
        return fp8_linear(x, self.weight, self.scales, self.block)


@dataclass(frozen=True, slots=True)
class Fp4:
    """4-bit floats, as `kernels.fp4_linear` has them."""

    codes: Tensor
    scales: Tensor
    factors: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]"""
        return fp4_linear(x, self.codes, self.scales, self.factors)


@dataclass(frozen=True, slots=True)
class Joined:
    """The results of several maps, one behind the other: what cannot be one matrix, for its precisions differ."""

    maps: tuple[Map, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, sum of out]"""
        return torch.cat([each(x) for each in self.maps], -1)


@dataclass(frozen=True, slots=True)
class Biased:
    """`map` and then `bias` [out]."""

    map: Map
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out]"""
        return self.map(x).add_(self.bias)

"""Rotary position embedding (Su et al. 2021), on halves of a head or on neighbouring pairs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.rope import rope_
from paceline.model.config import Rope
from paceline.model.rope import inverse_frequencies


class Rotation(Protocol):
    """The rotation of each row of one step."""

    def apply_(self, heads: Tensor) -> None:
        """Rotate the first values of `heads` [rows, heads, head_dim] in place, as many as the rope has."""


@dataclass(frozen=True, slots=True)
class WideRotation:
    """By a few operations of PyTorch; factors have the order of the values and their type, as transformers has them.

    cos: [rows, 1, dim]
    sin: [rows, 1, dim], negative for the first value of each pair
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply_(self, heads: Tensor) -> None:
        dim = self.cos.shape[-1]
        part = heads if dim == heads.shape[-1] else heads[..., :dim]
        swapped = (
            part.reshape(*part.shape[:-1], -1, 2).flip(-1).flatten(-2)
            if self.interleaved
            else part.roll(dim // 2, -1)
        )
        part.mul_(self.cos).addcmul_(swapped, self.sin)


@dataclass(frozen=True, slots=True)
class KernelRotation:
    """By `kernels.rope`. cos, sin: float32 [rows, dim / 2]"""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply_(self, heads: Tensor) -> None:
        rope_(heads, self.cos, self.sin, interleaved=self.interleaved)


class Ropes:
    """Makes the rotations of a step from its positions, one for each way in which a model's layers rotate."""

    def __init__(self, ropes: Iterable[Rope], device: torch.device, dtype: torch.dtype) -> None:
        self._tables = {}
        for rope in ropes:
            frequencies, scale = inverse_frequencies(rope)
            # In float32, as transformers computes angles: the weights were trained on that rounding.
            self._tables[rope] = (torch.from_numpy(frequencies).to(device, torch.float32), scale)
        self._dtype = dtype
        self._make = self._for_kernel if kernels.triton_runs(device) else self._wide

    def at(self, positions: Tensor) -> dict[Rope, Rotation]:
        """positions: [rows]"""
        return {rope: self._rotation(rope, positions) for rope in self._tables}

    def _rotation(self, rope: Rope, positions: Tensor) -> Rotation:
        frequencies, scale = self._tables[rope]
        angles = positions[:, None] * frequencies
        return self._make(angles.cos() * scale, angles.sin() * scale, rope.interleaved)

    def _for_kernel(self, cos: Tensor, sin: Tensor, interleaved: bool) -> Rotation:
        return KernelRotation(cos, sin, interleaved)

    def _wide(self, cos: Tensor, sin: Tensor, interleaved: bool) -> Rotation:
        if interleaved:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return WideRotation(cos[:, None].to(self._dtype), sin[:, None].to(self._dtype), interleaved)

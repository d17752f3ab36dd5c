"""Rotary position embedding (Su et al. 2021), on halves of a head or on neighbouring pairs."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.model.config import Rope
from paceline.model.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of each row of one step.

    cos: [rows, 1, dim]
    sin: [rows, 1, dim], negative for the first value of each pair
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply_(self, heads: Tensor) -> None:
        """Rotate the first `dim` values of `heads` [rows, heads, head_dim] in place."""
        dim = self.cos.shape[-1]
        part = heads if dim == heads.shape[-1] else heads[..., :dim]
        swapped = (
            part.reshape(*part.shape[:-1], -1, 2).flip(-1).flatten(-2)
            if self.interleaved
            else part.roll(dim // 2, -1)
        )
        part.mul_(self.cos).addcmul_(swapped, self.sin)


class Ropes:
    """Makes the rotations of a step from its positions, one for each way in which a model's layers rotate."""

    def __init__(self, ropes: Iterable[Rope], device: torch.device, dtype: torch.dtype) -> None:
        self._tables = {}
        for rope in ropes:
            frequencies, scale = inverse_frequencies(rope)
            # In float32, as transformers computes angles: the weights were trained on that rounding.
            self._tables[rope] = (torch.from_numpy(frequencies).to(device, torch.float32), scale)
        self._dtype = dtype

    def at(self, positions: Tensor) -> dict[Rope, Rotation]:
        """positions: [rows]"""
        return {rope: self._rotation(rope, positions) for rope in self._tables}

    def _rotation(self, rope: Rope, positions: Tensor) -> Rotation:
        frequencies, scale = self._tables[rope]
        angles = positions[:, None, None] * frequencies
        cos, sin = angles.cos() * scale, angles.sin() * scale
        if rope.interleaved:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return Rotation(cos.to(self._dtype), sin.to(self._dtype), rope.interleaved)

"""Rotary position embedding, on halves of the head dimension."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.model.config import ModelConfig
from paceline.model.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of each row of one step.

    cos: [rows, 1, head_dim]
    sin: [rows, 1, head_dim], negative in the first half
    """

    cos: Tensor
    sin: Tensor

    def apply_(self, heads: Tensor) -> None:
        """Rotate `heads` [rows, heads, head_dim] in place."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(self.cos).addcmul_(swapped, self.sin)


class Rope:
    """Makes the rotations of a step from its positions."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        frequencies, self._scale = inverse_frequencies(config)
        # In float32, as transformers computes angles: the weights were trained on that rounding.
        self._frequencies = torch.from_numpy(frequencies).to(device, torch.float32)
        self._dtype = dtype

    def at(self, positions: Tensor) -> Rotation:
        """positions: [rows]"""
        angles = positions[:, None, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        return Rotation(
            torch.cat((cos, cos), -1).to(self._dtype),
            torch.cat((-sin, sin), -1).to(self._dtype),
        )

"""Grouped-query attention (Ainslie et al. 2023), with what families add to it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.engine.torch.decoder import Forward
from paceline.engine.torch.kernels.rms_norm import rms_norm
from paceline.engine.torch.linear import Map
from paceline.model.config import GroupedAttention, Temperature


@dataclass(frozen=True, slots=True)
class GroupedBlock:
    """qk_norm: [heads + kv_heads, head_dim]; sinks: float32 [heads]"""

    config: GroupedAttention
    layer: int
    qkv: Map
    out: Map
    qk_norm: Tensor | None
    sinks: Tensor | None
    eps: float

    def __call__(self, x: Tensor, forward: Forward) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        config = self.config
        qkv = self.qkv(x).view(len(x), -1, config.head_dim)
        qk = qkv[:, : config.heads + config.kv_heads]
        if self.qk_norm is not None:
            qk.copy_(rms_norm(qk, self.qk_norm, self.eps))
        if config.rope is not None:
            forward.rotations[config.rope].apply_(qk)
        if config.qk_norm == "l2":
            qk.copy_(rms_norm(qk, None, self.eps))
        q, kv = qkv[:, : config.heads], qkv[:, config.heads :]
        if config.temperature is not None:
            q = (q * _growth(config.temperature, forward.positions)).to(x.dtype)
        found = forward.attention.grouped(self.layer, q, kv, scale=config.head_dim**-0.5, sinks=self.sinks)
        return self.out(found.flatten(1))


def _growth(temperature: Temperature, positions: Tensor) -> Tensor:
    """What queries are multiplied by, float32 [T, 1, 1]"""
    steps = torch.floor((positions.float() + 1) / temperature.floor)
    return (torch.log1p(steps) * temperature.scale + 1)[:, None, None]

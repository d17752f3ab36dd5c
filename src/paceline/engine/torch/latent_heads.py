"""The two ways from the latents in the cache to the result of each head (DeepSeek-V2, arXiv 2405.04434).

Expanded, every head's keys and values are computed from the latents. Absorbed, the queries are brought into the space
of the latents instead, and all heads share these as keys and values. Both give the same result.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from paceline.engine.torch.members import Members, attend
from paceline.model.config import LatentAttention

# Expanded keys and values that are held at a time: 256 MiB in bfloat16.
_EXPANDED = 1 << 27


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """up: [heads, nope_dim + value_dim, kv_rank], from the latent to a head's keys, then values"""

    config: LatentAttention
    up: Tensor

    def absorb(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """[T, heads, nope + rope] -> queries for latents [T, heads, kv_rank], and for rotary keys [T, heads, rope]"""
        nope, rotary = q.tensor_split((self.config.nope_dim,), -1)
        return torch.einsum("thd,hdr->thr", nope, self.up[:, : self.config.nope_dim]), rotary

    def values(self, found: Tensor) -> Tensor:
        """Sums of latents [T, heads, kv_rank] -> sums of values [T, heads, value_dim]"""
        return torch.einsum("thr,hdr->thd", found, self.up[:, self.config.nope_dim :])

    def attend(self, q: Tensor, cached: Tensor, members: Members) -> Tensor:
        """The cheaper way: q [rows, heads, nope + rope], cached [sequences, 1, positions, latent_dim] -> [rows, heads,
        value_dim]"""
        if self.expands(members.query_rows, members.positions):
            return self.expanded(q, cached, members)
        in_latent = torch.cat(self.absorb(q), -1)
        latents = cached[..., : self.config.kv_rank]
        return self.values(attend(in_latent, cached, latents, members, scale=self.config.scale))

    def expanded(self, q: Tensor, cached: Tensor, members: Members) -> Tensor:
        """A few heads at a time: those of a long context would fill the memory."""
        config = self.config
        width = config.nope_dim + config.rope.dim + config.value_dim
        count = max(1, _EXPANDED // (cached.shape[0] * cached.shape[2] * width))
        parts = [
            self._expand(heads, up, cached, members)
            for heads, up in zip(torch.split(q, count, 1), torch.split(self.up, count), strict=True)
        ]
        return torch.cat(parts, 1)

    def expands(self, rows: int, positions: int) -> bool:
        """Whether to expand `positions` latents takes fewer multiplications than to absorb the queries of `rows`."""
        config = self.config
        up = config.kv_rank * (config.nope_dim + config.value_dim)
        expanded = config.nope_dim + config.rope.dim + config.value_dim
        absorbed = config.latent_dim + config.kv_rank
        return positions * (up + rows * expanded) <= rows * (up + positions * absorbed)

    def _expand(self, q: Tensor, up: Tensor, cached: Tensor, members: Members) -> Tensor:
        config, (sequences, _, positions, _) = self.config, cached.shape
        latent, rotary = cached.tensor_split((config.kv_rank,), -1)
        expanded = linear(latent[:, 0], up.flatten(0, 1)).view(sequences, positions, *up.shape[:2])
        nope, values = expanded.transpose(1, 2).tensor_split((config.nope_dim,), -1)
        keys = torch.cat((nope, rotary.expand(-1, len(up), -1, -1)), -1)
        return attend(q, keys, values, members, scale=config.scale)

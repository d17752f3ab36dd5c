"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

Two ways give the same result. Expanded, every head's keys and values are computed from the latents in the cache.
Absorbed, the queries are brought into the space of the latents instead, and all heads share these as keys and values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from paceline.engine.torch.attention import Members, attend
from paceline.engine.torch.decoder import Forward
from paceline.engine.torch.indexer import IndexerBlock, sparse
from paceline.engine.torch.linear import Map
from paceline.engine.torch.norm import rms_norm
from paceline.model.config import LatentAttention

# DeepSeek's own code and transformers norm latents with this, whatever a configuration says of other norms.
_EPS = 1e-6
# Expanded keys and values that are held at a time: 256 MiB in bfloat16.
_EXPANDED = 1 << 27


@dataclass(frozen=True, slots=True)
class LatentBlock:
    """down: x [T, hidden] -> latent of the queries, or, without `q_rank`, the queries | latent | rotary key
    q_up: latent of the queries, normed by q_norm [q_rank], -> queries; None without `q_rank`
    kv_norm: [kv_rank]
    kv_up: [heads, nope_dim + value_dim, kv_rank], from the latent to a head's keys, then values
    indexer: None where the layer reads everything, or what the layer before it selected
    """

    config: LatentAttention
    layer: int
    down: Map
    q_norm: Tensor | None
    q_up: Map | None
    kv_norm: Tensor
    kv_up: Tensor
    out: Map
    indexer: IndexerBlock | None

    def __call__(self, x: Tensor, forward: Forward) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        config = self.config
        q, kv = self.down(x).tensor_split((-config.latent_dim,), -1)
        if self.q_norm is not None and self.q_up is not None:
            q_latent = rms_norm(q, self.q_norm, _EPS)
            if self.indexer is not None:
                forward.selected = self.indexer(x, q_latent, forward)
            q = self.q_up(q_latent)
        q = q.view(len(x), config.heads, -1)
        kv[:, : config.kv_rank] = rms_norm(kv[:, : config.kv_rank], self.kv_norm, _EPS)
        rotation = forward.rotations[config.rope]
        rotation.apply_(q[..., config.nope_dim :])
        rotation.apply_(kv[:, None, config.kv_rank :])
        plane = forward.attention.plane(self.layer, "latent")
        plane.write(kv[:, None])
        selected = forward.selected

        def attend_to(members: Members, q: Tensor) -> Tensor:
            cached = plane.gather(members.table, q.dtype)[:, :, : members.positions]
            if selected is not None:
                members = sparse(members, selected[members.rows], q.dtype)
            if expands(config, members.query_rows, members.positions):
                return self._expanded(q, cached, members)
            return self._absorbed(q, cached, members)

        return self.out(plane.by_members(q, attend_to).flatten(1))

    def _absorbed(self, q: Tensor, cached: Tensor, members: Members) -> Tensor:
        """q [rows, heads, nope + rope], cached [sequences, 1, positions, kv_rank + rope] -> [rows, heads, value_dim]"""
        config = self.config
        keys, values = self.kv_up.tensor_split((config.nope_dim,), 1)
        nope, rotary = q.tensor_split((config.nope_dim,), -1)
        in_latent = torch.cat((torch.einsum("thd,hdr->thr", nope, keys), rotary), -1)
        found = attend(in_latent, cached, cached[..., : config.kv_rank], members, scale=config.scale)
        return torch.einsum("thr,hdr->thd", found, values)

    def _expanded(self, q: Tensor, cached: Tensor, members: Members) -> Tensor:
        """As `_absorbed`, a few heads at a time: those of a long context would fill the memory."""
        config = self.config
        width = config.nope_dim + config.rope.dim + config.value_dim
        count = max(1, _EXPANDED // (cached.shape[0] * cached.shape[2] * width))
        parts = [
            self._expand(heads, up, cached, members)
            for heads, up in zip(torch.split(q, count, 1), torch.split(self.kv_up, count), strict=True)
        ]
        return torch.cat(parts, 1)

    def _expand(self, q: Tensor, up: Tensor, cached: Tensor, members: Members) -> Tensor:
        config, (sequences, _, positions, _) = self.config, cached.shape
        latent, rotary = cached.tensor_split((config.kv_rank,), -1)
        expanded = linear(latent[:, 0], up.flatten(0, 1)).view(sequences, positions, *up.shape[:2])
        nope, values = expanded.transpose(1, 2).tensor_split((config.nope_dim,), -1)
        keys = torch.cat((nope, rotary.expand(-1, len(up), -1, -1)), -1)
        return attend(q, keys, values, members, scale=config.scale)


def expands(config: LatentAttention, rows: int, positions: int) -> bool:
    """Whether it costs fewer multiplications to expand `positions` latents than to absorb the queries of `rows`."""
    up = config.kv_rank * (config.nope_dim + config.value_dim)
    expanded = config.nope_dim + config.rope.dim + config.value_dim
    absorbed = config.latent_dim + config.kv_rank
    return positions * (up + rows * expanded) <= rows * (up + positions * absorbed)

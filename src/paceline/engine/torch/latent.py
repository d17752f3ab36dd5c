"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""

from dataclasses import dataclass

from torch import Tensor

from paceline.engine.torch.decoder import Forward
from paceline.engine.torch.indexer import IndexerBlock
from paceline.engine.torch.kernels.rms_norm import rms_norm
from paceline.engine.torch.latent_heads import LatentHeads
from paceline.engine.torch.linear import Map

# DeepSeek's own code and transformers norm latents with this, whatever a configuration says of other norms.
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class LatentBlock:
    """down: x [T, hidden] -> latent of the queries, or, without `q_rank`, the queries | latent | rotary key
    q_up: latent of the queries, normed by q_norm [q_rank], -> queries; None without `q_rank`
    kv_norm: [kv_rank]
    indexer: None where the layer reads everything, or what the layer before it selected
    """

    heads: LatentHeads
    layer: int
    down: Map
    q_norm: Tensor | None
    q_up: Map | None
    kv_norm: Tensor
    out: Map
    indexer: IndexerBlock | None

    def __call__(self, x: Tensor, forward: Forward) -> Tensor:
        """x [T, hidden] -> [T, hidden]"""
        config = self.heads.config
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
        found = forward.attention.latent(self.layer, q, kv, self.heads, forward.selected)
        return self.out(found.flatten(1))

"""The indexer of DeepSeek sparse attention (DeepSeek-V3.2): a small attention that selects what the large one reads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from paceline.engine.torch.decoder import Forward
from paceline.engine.torch.linear import Map
from paceline.engine.torch.members import Members
from paceline.model.config import Indexer

_EPS = 1e-6
# Scores of single heads that are held at a time: 256 MiB.
_SCORES = 1 << 26


@dataclass(frozen=True, slots=True)
class IndexerBlock:
    """score(row, position) = sum over heads h of weight_h(row) * relu(query_h(row) . key(position))

    query: latent of the queries [T, q_rank] -> [T, heads * dim]
    key: x [T, hidden] -> [T, dim]; its result is layer-normed by key_norm, weight and bias [dim]
    weights: float32 [heads, hidden]; the weights of the heads decide what is read, so they are never rounded
    """

    config: Indexer
    layer: int
    query: Map
    key: Map
    key_norm: tuple[Tensor, Tensor]
    weights: Tensor

    def __call__(self, x: Tensor, q_latent: Tensor, forward: Forward) -> Tensor | None:
        """The best `top_k` positions that each row sees, int32 [T, top_k], -1 where it sees fewer.

        None when no row can see more than `top_k`. Writes the key of every row to its slot.
        """
        config = self.config
        rotation = forward.rotations[config.rope]
        key = layer_norm(self.key(x), (config.dim,), *self.key_norm, eps=_EPS)
        rotation.apply_(key[:, None])
        plane = forward.attention.index(self.layer, key)
        longest = max((m.positions for m in plane.members), default=0)
        if longest <= config.top_k:
            return None
        query = self.query(q_latent).view(len(x), config.heads, config.dim)
        rotation.apply_(query)
        weights = linear(x.float(), self.weights) * (config.heads * config.dim) ** -0.5
        selected = torch.full((len(x), config.top_k), -1, dtype=torch.int32, device=x.device)
        for members in plane.members:
            keys = plane.gather(members.table, torch.float32)[:, 0, : members.positions]
            chosen = _select(query[members.rows].float(), weights[members.rows], keys, members, config.top_k)
            selected[members.rows, : chosen.shape[1]] = chosen
        return selected


def _select(query: Tensor, weights: Tensor, keys: Tensor, members: Members, top_k: int) -> Tensor:
    """The best positions of each row of `members`, int32 [sequences * query rows, at most top_k].

    query: [sequences * query rows, heads, dim]
    weights: [sequences * query rows, heads]
    keys: [sequences, positions, dim]
    """
    count, positions, _ = keys.shape
    heads = query.shape[1]
    query = query.view(count, -1, heads, query.shape[2])
    weights = weights.view(count, -1, 1, heads)
    block = max(1, _SCORES // (count * heads * positions))
    chosen = []
    for start in range(0, members.query_rows, block):
        rows = slice(start, min(start + block, members.query_rows))
        single = (query[:, rows].flatten(1, 2) @ keys.transpose(1, 2)).relu_()
        scores = (weights[:, rows] @ single.view(count, -1, heads, positions)).squeeze(2)
        best = _hide(scores, members, rows).topk(min(top_k, positions))
        chosen.append(best.indices.masked_fill_(best.values == -torch.inf, -1))
    return torch.cat(chosen, 1).flatten(0, 1).int()


def _hide(scores: Tensor, members: Members, rows: slice) -> Tensor:
    """`scores` [sequences, rows, positions], -inf where a row does not see a position."""
    if members.mask is not None:
        return scores.masked_fill_(members.mask[:, 0, rows] == -torch.inf, -torch.inf)
    if members.causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu_(rows.start + 1)
        return scores.masked_fill_(hidden, -torch.inf)
    return scores

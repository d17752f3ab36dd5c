"""Attention over keys and values that were gathered from pages, in plain PyTorch."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.engine.torch.planes import Table
from paceline.engine.torch.visibility import SHORT


@dataclass(frozen=True, slots=True)
class Members:
    """Sequences that one kernel call attends, of equally many query rows each.

    rows: where these lie in the step: a slice, or int64 [sequences * query rows]
    table: their pages from the first that any row sees
    sequences, query_rows: how many
    positions: columns of keys and values to attend to, of each sequence
    mask: added to the scores, [sequences, 1, query rows, positions]; None when every row sees everything, or, when
        `causal`, everything before it
    """

    rows: slice | Tensor
    table: Table
    sequences: int
    query_rows: int
    positions: int
    mask: Tensor | None
    causal: bool


def attend(
    q: Tensor, k: Tensor, v: Tensor, members: Members, *, scale: float, sinks: Tensor | None = None
) -> Tensor:
    """Attention of the rows of `members`.

    q: [sequences * query rows, heads, dim]
    k: [sequences, kv_heads, positions, dim]
    v: [sequences, kv_heads, positions, value dim]
    sinks: [heads], logits that join each head's softmax
    returns [sequences * query rows, heads, value dim]
    """
    mask = members.mask
    q = q.view(members.sequences, members.query_rows, *q.shape[1:])
    short = members.query_rows <= SHORT
    causal = members.causal
    if sinks is not None:
        k, v, mask = _with_sink(k, v, members, sinks, q.dtype)
        causal = False
    if not short:
        out = scaled_dot_product_attention(
            q.transpose(1, 2), k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        ).transpose(1, 2)
        return out.reshape(-1, *out.shape[2:])
    # The query heads of a KV head become rows of it: for one row 0.28 ms against 2.0 ms by enable_gqa.
    heads, sharing = q.shape[2], q.shape[2] // k.shape[1]
    q = q.view(*q.shape[:2], -1, sharing, q.shape[3]).permute(0, 2, 3, 1, 4)
    if mask is not None and (members.query_rows > 1 or mask.shape[1] > 1):
        mask = _fold(mask, k.shape[1], sharing)
    out = scaled_dot_product_attention(q.flatten(2, 3), k, v, attn_mask=mask, scale=scale)
    out = out.view(*q.shape[:-1], -1).permute(0, 3, 1, 2, 4)
    return out.reshape(-1, heads, out.shape[-1])


def _fold(mask: Tensor, kv_heads: int, sharing: int) -> Tensor:
    """A mask of query heads, or of all of them at once, as one whose rows are (query head of the KV head, row)."""
    if mask.shape[1] == 1:
        return mask.repeat(1, 1, sharing, 1)
    return mask.reshape(len(mask), kv_heads, -1, mask.shape[-1])


def _with_sink(
    k: Tensor, v: Tensor, members: Members, sinks: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """A position of zeros behind the others, to which the mask gives each head's sink as its logit."""
    k, v = (torch.cat((x, x.new_zeros(*x.shape[:2], 1, x.shape[3])), 2) for x in (k, v))
    rows, positions = members.query_rows, members.positions
    mask = members.mask
    if mask is None:
        mask = torch.zeros(1, 1, rows, positions, dtype=dtype, device=k.device)
        if members.causal:
            mask.masked_fill_(torch.ones_like(mask, dtype=torch.bool).triu(1), -torch.inf)
    mask = mask.expand(-1, len(sinks), -1, -1)
    column = sinks.to(dtype).view(1, -1, 1, 1).expand(*mask.shape[:3], 1)
    return k, v, torch.cat((mask, column), -1)


def sparse(members: Members, selected: Tensor, dtype: torch.dtype) -> Members:
    """`members` whose rows attend to the positions `selected` int32 [sequences * query rows, k] and to no others."""
    positions = members.positions
    # The column behind the last stands for "none".
    index = torch.where(selected < 0, positions, selected).long()
    mask = torch.full((len(index), positions + 1), -torch.inf, dtype=dtype, device=index.device)
    mask = mask.scatter_(1, index, 0.0)[:, :positions]
    return replace(members, mask=mask.view(members.sequences, 1, -1, positions), causal=False)

"""`mla_decode` in plain torch."""

import torch
from torch import Tensor

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.torch.kernels.paged_attention.naive import attend
from paceline.engine.torch.kernels.planes import LatentView
from paceline.engine.torch.kernels.rows import Rows


def mla_decode(
    q_content: Tensor,
    q_rope: Tensor,
    latent: LatentView,
    page_table: Tensor,
    rows: Rows,
    scale: float,
    selected: Tensor | None = None,
) -> Tensor:
    q = torch.cat((q_content, q_rope), dim=2)
    out = torch.empty_like(q_content, memory_format=torch.contiguous_format)
    for group in rows.groups:
        pages = page_table[group.members, : -(-group.positions // PAGE_TOKENS)].long()
        seen = group.seen
        if selected is not None:
            seen = seen & _marks(selected[group.rows], group.positions)
        keys = _gather(latent, pages, q.dtype)[:, : group.positions]
        # What nobody attends to may be NaN, which a weight of zero would not hide.
        keys = keys.masked_fill(~seen.any(1)[:, :, None], 0)[:, None]
        # The keys are the values as well. Their rope is cut off afterwards, since equal sizes have the faster kernel.
        out[group.rows] = attend(q[group.rows], keys, keys, seen, scale)[..., : out.shape[2]]
    return out


def _gather(latent: LatentView, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Content and rope of the pages [n, p] in order: [n, p * PAGE_TOKENS, C + R]."""
    content, rope = latent.content[pages].float(), latent.rope[pages].float()
    if latent.scales is not None:
        scales = latent.scales[pages]
        content *= scales.repeat_interleave(content.shape[-1] // scales.shape[-1], dim=-1)
    else:
        content, rope = content * latent.scale, rope * latent.scale
    return torch.cat((content, rope), dim=-1).flatten(1, 2).to(dtype)


def _marks(selected: Tensor, positions: int) -> Tensor:
    """bool [n, rows, positions]: which positions are among `selected` [n, rows, K]."""
    marks = torch.zeros(*selected.shape[:2], positions + 1, dtype=torch.bool, device=selected.device)
    return marks.scatter_(2, selected.long() % (positions + 1), True)[..., :positions]

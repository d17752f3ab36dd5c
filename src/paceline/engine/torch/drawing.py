"""Tokens from logits on the device, so that only they leave it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.contracts.messages import Sampling
from paceline.engine.masks import Masks
from paceline.engine.step import Float32, Int32
from paceline.engine.torch.kernels.sampling import Draws, sample
from paceline.engine.torch.upload import upload


def draw(
    logits: Tensor, positions: Int32, samplings: Sequence[Sampling | None], masks: Masks | None = None
) -> list[Float32 | int]:
    """As `Engine.sample` gives them.

    logits: float32 [R, vocab], which are changed
    positions: [R], of the rows' own tokens
    """
    drawn = [row for row, sampling in enumerate(samplings) if sampling is not None]
    left = [row for row, sampling in enumerate(samplings) if sampling is None]
    outcome: dict[int, Float32 | int] = {}
    if left:
        outcome.update(zip(left, logits[left].cpu().numpy(), strict=True))
    if drawn:
        if masks is not None:
            _exclude(logits, masks)
        draws = Draws.of(
            [sampling for sampling in samplings if sampling is not None],
            positions[drawn].tolist(),
            logits.device,
        )
        tokens = sample(logits[drawn] if left else logits, draws)
        outcome.update(zip(drawn, tokens.tolist(), strict=True))
    return [outcome[row] for row in range(len(samplings))]


def _exclude(logits: Tensor, masks: Masks) -> None:
    """Leave of the rows of `masks` what these allow."""
    rows, bits = upload((np.array(masks.rows, dtype=np.int64), masks.bits), logits.device)
    digits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((bits[:, :, None] >> digits) & 1).flatten(1)[:, : logits.shape[1]] != 0
    logits[rows] = logits[rows].where(allowed, -torch.inf)

"""Tokens from logits on the device, so that only they leave it."""

from collections.abc import Sequence

from torch import Tensor

from paceline.contracts.messages import Sampling
from paceline.engine.step import Float32, Int32
from paceline.engine.torch.kernels.sampling import Draws, sample


def draw(logits: Tensor, positions: Int32, samplings: Sequence[Sampling | None]) -> list[Float32 | int]:
    """As `Engine.sample` gives them.

    logits: float32 [R, vocab]
    positions: [R], of the rows' own tokens
    """
    drawn = [row for row, sampling in enumerate(samplings) if sampling is not None]
    left = [row for row, sampling in enumerate(samplings) if sampling is None]
    outcome: dict[int, Float32 | int] = {}
    if drawn:
        draws = Draws.of(
            [sampling for sampling in samplings if sampling is not None],
            positions[drawn].tolist(),
            logits.device,
        )
        tokens = sample(logits[drawn] if left else logits, draws)
        outcome.update(zip(drawn, tokens.tolist(), strict=True))
    if left:
        outcome.update(zip(left, logits[left].cpu().numpy(), strict=True))
    return [outcome[row] for row in range(len(samplings))]

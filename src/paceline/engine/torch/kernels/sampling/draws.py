"""How the tokens of a batch are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.contracts.messages import Sampling


@dataclass(frozen=True, slots=True)
class Draws:
    """One entry for each of R rows, on the device of the logits.

    temperatures: float64 [R], 0 for the likeliest token
    top_ks: int64 [R], 0 for all
    top_ps: float64 [R]
    min_ps: float64 [R]
    seeds: int64 [R], of whose bits an unsigned number is meant
    positions: int64 [R], where the token will be in its sequence
    """

    temperatures: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor
    seeds: Tensor
    positions: Tensor

    @classmethod
    def of(cls, samplings: Sequence[Sampling], positions: Sequence[int], device: torch.device) -> "Draws":
        """Of requests; their biases and penalties are left out."""

        def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        return cls(
            temperatures=column([s.temperature for s in samplings], torch.float64),
            top_ks=column([s.top_k for s in samplings], torch.int64),
            top_ps=column([s.top_p for s in samplings], torch.float64),
            min_ps=column([s.min_p for s in samplings], torch.float64),
            seeds=column([_signed(s.seed) for s in samplings], torch.int64),
            positions=column(list(positions), torch.int64),
        )


def _signed(seed: int) -> int:
    """The int64 of the same low 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)

"""How the tokens of a batch are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.contracts.messages import Sampling
from paceline.engine.torch.upload import upload


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

        columns = (
            np.array([s.temperature for s in samplings], dtype=np.float64),
            np.array([s.top_k for s in samplings], dtype=np.int64),
            np.array([s.top_p for s in samplings], dtype=np.float64),
            np.array([s.min_p for s in samplings], dtype=np.float64),
            np.array([s.seed % (1 << 64) for s in samplings], dtype=np.uint64).view(np.int64),
            np.array(positions, dtype=np.int64),
        )
        return cls(*upload(columns, device))

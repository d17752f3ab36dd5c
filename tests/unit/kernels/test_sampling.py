"""Both forms draw the token that the host's sampler draws from the same logits."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.contracts.messages import Sampling
from paceline.engine import philox, sampling
from paceline.engine.torch.kernels.sampling import Draws, naive, sample, triton

Form = Callable[[Tensor, Draws], Tensor]

CPU = torch.device("cpu")
VOCAB = 4500  # a block of the kernel and a part of one
SEEDS = [0, 1, 2**63, 2**64 - 1, -1, 0x123456789ABCDEF]


def settings() -> list[Sampling]:
    """Every filter alone and all together."""
    values = itertools.product((0.7, 1.0, 3.0), (0, 1, 50), (1.0, 0.8, 1e-9), (0.0, 0.1))
    return [
        Sampling(max_tokens=1, temperature=t, top_k=k, top_p=p, min_p=m, seed=seed)
        for seed, (t, k, p, m) in zip(itertools.cycle(SEEDS), values, strict=False)
    ]


def logits_of(rows: int) -> Tensor:
    """Of a view, with ties: a step of 1/8 leaves some 50 different values."""
    random = np.random.default_rng(0).normal(scale=2.0, size=(rows, VOCAB + 1)).astype(np.float32)
    return torch.from_numpy((random * 8).round() / 8)[:, :VOCAB]


def by_host(logits: Tensor, draws: list[Sampling], positions: list[int]) -> list[int]:
    rows = logits.numpy()
    return [sampling.sample(rows[i], draws[i], positions[i], None) for i in range(len(rows))]


# The interpreter takes a quarter of a second for a row that is searched: five settings away from one another.
@pytest.mark.parametrize(("form", "step"), [(sample, 1), (triton.sample, 7)])
def test_tokens_are_those_of_the_host(form: Form, step: int) -> None:
    draws = [
        *settings()[::step],
        Sampling(max_tokens=1, temperature=0.0),
        Sampling(max_tokens=1, temperature=1e300, seed=5),
        Sampling(max_tokens=1, temperature=5e-324, seed=5),
        Sampling(max_tokens=1, temperature=1e300, top_k=3, top_p=0.5, seed=6),
        Sampling(max_tokens=1, top_k=VOCAB + 7, seed=6),
    ]
    positions = [2**32 * (i % 2) + 17 * i for i in range(len(draws))]
    logits = logits_of(len(draws))
    logits[:, 100:200] = -torch.inf
    with np.errstate(over="ignore"):  # of a division by the tiniest temperature, in the interpreter
        tokens = form(logits, Draws.of(draws, positions, CPU)).tolist()
    assert tokens == by_host(logits, draws, positions)


@pytest.mark.parametrize("form", [sample, triton.sample])
def test_the_likeliest_is_the_first_and_no_distribution_has_no_token(form: Form) -> None:
    logits = torch.zeros(6, VOCAB)
    logits[0, [300, 4400]] = 2.0
    logits[1, 7], logits[2, 4401], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[4] = -torch.inf
    logits[4, 4402] = -5.0
    draws = [Sampling(max_tokens=1, temperature=0.0)] * 3 + [Sampling(max_tokens=1, min_p=0.9)] * 3
    tokens = form(logits, Draws.of(draws, [0] * 6, CPU)).tolist()
    assert tokens[:5] == [300, -1, -1, -1, 4402]
    assert 0 <= tokens[5] < VOCAB


def test_random_numbers_are_those_of_philox() -> None:
    positions = [0, 1, 2**31, 2**32 - 1, 2**32 + 5, 10**12]
    draws = Draws.of([Sampling(max_tokens=1, seed=seed) for seed in SEEDS], positions, CPU)
    expected = [philox.uniform(seed, position) for seed, position in zip(SEEDS, positions, strict=True)]
    assert naive.uniform(draws.seeds, draws.positions).tolist() == expected

"""Sampling in plain PyTorch, all rows together; the order of operations is that of `paceline.engine.sampling`."""

import torch
from torch import Tensor

from paceline.engine.torch.kernels.sampling.draws import Draws

_MASK = 0xFFFFFFFF


def sample(logits: Tensor, draws: Draws) -> Tensor:
    """See the package."""
    best, likeliest = logits.max(-1)
    scores = logits.double() - best.double()[:, None]
    greedy = draws.temperatures == 0.0
    weights = (scores / draws.temperatures.where(~greedy, 1.0)[:, None]).exp_()
    weights *= weights >= draws.min_ps[:, None]
    if bool(((draws.top_ks > 0) | (draws.top_ps < 1.0)).any()):
        weights *= weights >= _floors(weights, draws)[:, None]
    mass = weights.cumsum(-1)
    targets = uniform(draws.seeds, draws.positions) * mass[:, -1]
    drawn = torch.searchsorted(mass, targets[:, None], right=True)[:, 0]
    return torch.where(greedy, likeliest, drawn).where(best.isfinite(), -1)


def _floors(weights: Tensor, draws: Draws) -> Tensor:
    """The smallest weight of each row that top_k and top_p keep."""
    vocab = weights.shape[-1]
    ranked = weights.sort(-1, descending=True).values
    limited = (draws.top_ks > 0) & (draws.top_ks < vocab)
    last = torch.where(limited, draws.top_ks, vocab) - 1
    floors = ranked.gather(-1, last[:, None])
    mass = (ranked * (ranked >= floors)).cumsum(-1)
    # The smallest set that reaches top_p.
    last = torch.searchsorted(mass, draws.top_ps[:, None] * mass[:, -1:]).clamp_(max=vocab - 1)
    return torch.where(draws.top_ps < 1.0, ranked.gather(-1, last)[:, 0], floors[:, 0])


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Philox4x32-10 as in `paceline.engine.philox`: int64 [R], int64 [R] -> float64 [R] in [0, 1)."""
    counter = [positions & _MASK, *(torch.zeros_like(positions) for _ in range(3))]
    key = [seeds & _MASK, (seeds >> 32) & _MASK]
    for _ in range(10):
        # Products of 64 bits wrap around in int64, whose bits are those of the unsigned product.
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            ((second >> 32) & _MASK) ^ counter[1] ^ key[0],
            second & _MASK,
            ((first >> 32) & _MASK) ^ counter[3] ^ key[1],
            first & _MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & _MASK, (key[1] + 0xBB67AE85) & _MASK]
    bits = (counter[0] << 21) | (counter[1] >> 11)
    return bits.double() * 2.0**-53

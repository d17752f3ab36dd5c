import math

import torch

from paceline.engine.torch.kernels.split_context import splits_of
from paceline.engine.torch.kernels.split_context.triton import combine


def test_a_context_is_split_until_the_device_is_full_or_parts_are_small() -> None:
    assert splits_of(programs=8, positions=131072) == 33
    assert splits_of(programs=8, positions=300) == 3
    assert splits_of(programs=133, positions=131072) == 1
    assert splits_of(programs=1000, positions=131072) == 1
    assert splits_of(programs=1, positions=0) == 1


def test_parts_count_by_their_share_of_the_softmax() -> None:
    partial = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1, 1) * torch.tensor([1.0, 2.0, 3.0]).view(
        1, 3, 1, 1
    )
    log_sums = torch.tensor(
        [[0.0, 100.0, -torch.inf], [1.0, 100.0, -torch.inf], [-torch.inf, 102.0, -torch.inf]]
    )
    out = combine(partial.expand(3, 3, 1, 5).contiguous(), log_sums[:, :, None].contiguous(), torch.float32)
    assert out.shape == (3, 1, 5)
    # Shares of 1/3 and 2/3; of 1/6, 1/6 and 4/6; and of nothing.
    assert torch.allclose(out[:, 0, 0], torch.tensor([7.0, 137.0, 0.0]))


def test_many_parts_are_those_of_one() -> None:
    """More than are loaded together, and not a multiple of them."""
    torch.manual_seed(0)
    partial, log_sums = torch.randn(37, 2, 3, 20), 5 * torch.randn(37, 2, 3)
    log_sums[5:30, 1] = -torch.inf
    shares = (log_sums.double() * math.log(2)).softmax(0)
    expected = (shares[..., None] * partial).sum(0)
    torch.testing.assert_close(
        combine(partial, log_sums, torch.float32).double(), expected, rtol=1e-5, atol=1e-6
    )

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.engine.torch.kernels.page_tags import changed, naive, triton


@pytest.mark.parametrize("compare", [naive.changed, triton.changed, changed], ids=["naive", "triton", "cpu"])
def test_pages_whose_tag_differs_in_any_bit(compare: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    n = 1500
    table = torch.randint(-(2**63), 2**63 - 1, (200,))
    pages = torch.randint(0, 200, (n,))
    tags = table[pages]
    stale = torch.tensor([0, 1023, 1024, n - 1])
    tags[stale] ^= torch.tensor([1, -(2**63), 1 << 32, 1 << 62])
    assert compare(pages, tags, table).nonzero().flatten().tolist() == stale.tolist()


@pytest.mark.parametrize("compare", [naive.changed, triton.changed])
def test_nothing_to_compare(compare: Callable[..., Tensor]) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    assert compare(nothing, nothing, torch.tensor([7])).tolist() == []

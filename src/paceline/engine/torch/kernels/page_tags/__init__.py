"""Whether pages still are whose they were, for all pages of a step at once.

The engine does not call this yet: its tags lie on the host, where they are compared (docs/decisions/0010).
"""

from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.page_tags import naive


def changed(pages: Tensor, tags: Tensor, table: Tensor) -> Tensor:
    """bool [n]: where page `pages[i]` no longer bears tag `tags[i]`.

    pages: int64 [n]
    tags: int64 [n], the bits of the tags that were recorded
    table: int64 [pages], those of the tags that the pages bear now
    """
    if kernels.triton_runs(pages.device):
        from paceline.engine.torch.kernels.page_tags import triton

        return triton.changed(pages, tags, table)
    return naive.changed(pages, tags, table)

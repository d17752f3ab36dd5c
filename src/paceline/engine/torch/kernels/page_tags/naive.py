"""`changed` in plain torch."""

from torch import Tensor


def changed(pages: Tensor, tags: Tensor, table: Tensor) -> Tensor:
    return table[pages] != tags

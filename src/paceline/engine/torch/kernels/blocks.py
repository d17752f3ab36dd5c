"""How plain PyTorch expands a quantised matrix: a block of rows at a time, so that no whole copy of it ever exists."""

from collections.abc import Iterator

# 16 MB in float32: larger than what one call costs, small beside any matrix worth quantising.
_ELEMENTS = 1 << 22


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Consecutive slices that cover `rows` rows of `columns` elements."""
    step = max(1, _ELEMENTS // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))

"""How a long context is shared among programs, and their results put together (flash-decoding, Dao et al. 2023)."""

MOST_SPLITS = 264
"""Two programs for each of the 132 processors of an H100 or H200."""
_LEAST_POSITIONS = 128
"""Positions that are worth a program of their own."""


def splits_of(programs: int, positions: int) -> int:
    """Into how many parts to split contexts of at most `positions` so that `programs` times it fills the device."""
    return max(1, min(MOST_SPLITS // programs, -(-positions // _LEAST_POSITIONS)))

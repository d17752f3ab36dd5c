"""Rates from the steps of an engine that batches continuously.

Every peer that is driven step by step reports the same thing, so that one rule decides what of it is decoding.
"""

from collections.abc import Sequence
from typing import TypeAlias

Step: TypeAlias = tuple[float, Sequence[int]]
"""When a step ended, in seconds from the first request on, and how many tokens each sequence had by then."""


def decode_rate(steps: Sequence[Step]) -> float:
    """Tokens a second of all sequences together, while all of them decode and none reads its prompt.

    Counted from the step in which the last sequence got its first token to the one in which the first got its last.
    """
    began = next((i for i, (_, counts) in enumerate(steps) if min(counts) > 0), None)
    if began is None:
        raise ValueError("a sequence got no token")
    final = steps[-1][1]
    ended = next(
        i for i, (_, counts) in enumerate(steps) if any(c == f for c, f in zip(counts, final, strict=True))
    )
    if ended <= began:
        raise ValueError(
            "a sequence had ended before all decoded: generate more tokens, or batch fewer prompts"
        )
    tokens = sum(steps[ended][1]) - sum(steps[began][1])
    return tokens / (steps[ended][0] - steps[began][0])


def prefill_rate(prompt: int, steps: Sequence[Step]) -> float:
    """Prompt tokens a second of one sequence up to its first token."""
    return prompt / next(time for time, (count,) in steps if count > 0)

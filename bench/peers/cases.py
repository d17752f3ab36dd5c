"""What every peer is asked to do, so that rows of two peers can be compared."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cases:
    """Token ids are random; no two prompts share a prefix.

    decode: batch sizes; each sequence has a prompt of `prompt` tokens and generates `output` more
    prefill: prompt lengths, one sequence at a time
    repeats: measurements of each case, behind one that warms up
    """

    decode: tuple[int, ...] = (1, 8, 32, 64)
    prefill: tuple[int, ...] = (1024, 4096)
    prompt: int = 128
    output: int = 64
    repeats: int = 5
    threads: int = 2

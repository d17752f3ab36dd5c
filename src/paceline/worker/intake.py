"""What a worker checks before it takes work: a message of the right shape may still ask for the impossible."""

import re

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Work

_REQUEST_ID = re.compile(r"[0-9a-f]{32}")
_GATEWAY = re.compile(r"[A-Za-z0-9_-]+")
_MAX_ATTEMPT = 2**16 - 1  # as many as a token frame can number


def check(work: Work, vocab: int) -> None:
    """Raises `InvalidRequest` for work that would fail in the middle of a step, with others beside it."""
    if not _REQUEST_ID.fullmatch(work.request_id) or not 0 < work.attempt <= _MAX_ATTEMPT:
        raise InvalidRequest(
            f"attempt {work.attempt} at request {work.request_id!r} has no place in a token frame"
        )
    if not _GATEWAY.fullmatch(work.gateway):
        raise InvalidRequest(f"gateway {work.gateway!r} is no part of a subject")
    if not work.prompt or work.sampling.max_tokens <= len(work.output):
        raise InvalidRequest(f"{len(work.prompt)} prompt tokens, and {work.sampling.max_tokens} to generate")
    for name, tokens in (
        ("prompt", work.prompt),
        ("output", work.output),
        ("logit_bias", list(work.sampling.logit_bias)),
        ("stop_token_ids", list(work.sampling.stop_token_ids)),
    ):
        _check_tokens(name, tokens, vocab)


def _check_tokens(name: str, tokens: list[int], vocab: int) -> None:
    try:
        ids = np.asarray(tokens, dtype=np.int64)
    except OverflowError:
        ids = np.array([-1])
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
        raise InvalidRequest(f"{name} has token ids outside the vocabulary of {vocab}", param=name)

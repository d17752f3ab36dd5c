"""What a worker checks before it takes work: a message of the right shape may still ask for the impossible."""

import re

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import MAX_LOGPROBS, MAX_PROMPT_LOGPROBS, Work

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
    _check_logprobs(work)
    for name, tokens in (
        ("prompt", work.prompt),
        ("output", work.output),
        ("logit_bias", list(work.sampling.logit_bias)),
        ("stop_token_ids", list(work.sampling.stop_token_ids)),
    ):
        _check_tokens(name, tokens, vocab)


def _check_logprobs(work: Work) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        wanted: int | None = getattr(work.sampling, name)
        if wanted is not None and not 0 <= wanted <= MAX_LOGPROBS:
            raise InvalidRequest(
                f"{name} is {wanted}, and has to be between 0 and {MAX_LOGPROBS}", param=name
            )
    beside = work.sampling.prompt_logprobs
    if beside is not None and len(work.prompt) * (1 + beside) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"log probabilities of {len(work.prompt)} prompt tokens with {beside} alternatives each are more than the "
            f"{MAX_PROMPT_LOGPROBS} that are sent at once",
            param="prompt_logprobs",
        )


def _check_tokens(name: str, tokens: list[int], vocab: int) -> None:
    try:
        ids = np.asarray(tokens, dtype=np.int64)
    except OverflowError:
        ids = np.array([-1])
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab:
        raise InvalidRequest(f"{name} has token ids outside the vocabulary of {vocab}", param=name)

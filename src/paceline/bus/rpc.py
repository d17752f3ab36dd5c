"""A typed request to one worker."""

import asyncio
from typing import TypeVar

import msgspec

from paceline.bus.interface import Bus
from paceline.contracts.codec import encode
from paceline.contracts.errors import Busy, PacelineError, Unavailable, from_code
from paceline.contracts.messages import Refused, Role
from paceline.contracts.subjects import Endpoint
from paceline.telemetry import traces

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")

_PAUSE_S = 0.25


async def call(
    bus: Bus, endpoint: Endpoint[Q, R], role: Role, worker: str, message: Q, *, timeout: float = 1.0
) -> R:
    """The worker's answer to `message`; the current trace goes with it.

    Raises the error that the worker refused with, `Unavailable` when nobody listens or nothing comes within
    `timeout` seconds, and `ProtocolError` when the answer is not one of this endpoint.
    """
    subject = endpoint.subject(role, worker)
    try:
        answer = await bus.request(subject, encode(message), timeout=timeout, headers=traces.inject())
    except TimeoutError as e:
        raise Unavailable(f"no answer from {subject} within {timeout:g} s") from e
    reply: R | Refused = endpoint.decode_reply(answer.data)
    if isinstance(reply, Refused):
        raise _error(reply)
    return reply


async def insist(
    bus: Bus,
    endpoint: Endpoint[Q, R],
    role: Role,
    worker: str,
    message: Q,
    *,
    timeout: float = 1.0,
    patience: float = 10.0,
) -> R:
    """Like `call`, for messages that may arrive twice: tries again for `patience` seconds after `Unavailable`, because
    after a restart of the server the two sides are back at different moments."""
    give_up = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await call(bus, endpoint, role, worker, message, timeout=timeout)
        except Unavailable:
            if asyncio.get_running_loop().time() >= give_up:
                raise
        await asyncio.sleep(_PAUSE_S)


def _error(refused: Refused) -> PacelineError:
    error = from_code(refused.code, refused.message)
    if isinstance(error, Busy):
        error.retry_after_s = refused.retry_after_s
    return error

"""JetStream: messages that a NATS server keeps, to be read again by subject, or to be worked on once.

Spoken as requests on the bus: what a store and a queue need of it is a handful of subjects. Servers from 2.12 on.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.bus.inbox import inbox
from paceline.bus.interface import Bus, Delivery
from paceline.bus.work import Work, give_back
from paceline.contracts.errors import Unavailable

_API = "$JS.API"
_TIMEOUT_S = 5.0
# What comes at once is handled at once: small enough that nobody waits for it.
_PAGE = 64
_PAGE_BYTES = 256 << 10
# A pull that hears nothing for two heartbeats was lost with its server.
_PULL_S, _HEARTBEAT_S = 30.0, 2.0

ACK_WAIT_S = 30.0
"""So long after its last sign of life, work is given to somebody else."""

_NAME_IN_USE = 10058
_WRONG_LAST = (10071, 10164)


class Conflict(Exception):
    """Something else was stored first."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it is kept. Sequences grow in the order of storing."""

    subject: str
    sequence: int
    data: bytes


class _Error(msgspec.Struct, frozen=True):
    description: str = "unknown error"
    err_code: int = 0


class _Reply(msgspec.Struct, frozen=True):
    error: _Error | None = None
    seq: int = 0


class JetStream:
    """A client. Every method raises `Unavailable` when the server is away, full, or runs without JetStream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def check(self) -> None:
        """Raises `Unavailable` that says so when the server runs without JetStream."""
        try:
            reply = await self._ask("INFO", b"")
        except Unavailable as e:
            if not self._bus.connected:
                raise
            raise Unavailable("The mesh's NATS server runs without JetStream") from e
        _check(reply)

    async def stream(self, name: str, config: Mapping[str, Any]) -> None:
        """Make the stream, or give it this configuration."""
        body = msgspec.json.encode({"name": name, **config})
        reply = await self._ask(f"STREAM.CREATE.{name}", body)
        if reply.error and reply.error.err_code == _NAME_IN_USE:
            reply = await self._ask(f"STREAM.UPDATE.{name}", body)
        _check(reply)

    async def consumer(self, stream: str, name: str, subjects: str) -> None:
        """Make a durable consumer of the stream's messages on `subjects`, for `pull`."""
        config = {
            "name": name,
            "durable_name": name,
            "filter_subject": subjects,
            "ack_policy": "explicit",
            "ack_wait": int(ACK_WAIT_S * 1e9),
            "max_ack_pending": -1,
        }
        body = msgspec.json.encode({"stream_name": stream, "config": config})
        _check(await self._ask(f"CONSUMER.CREATE.{stream}.{name}.{subjects}", body))

    async def put(
        self, subject: str, data: bytes, *, over: int | None = None, among: str = "", once: str = ""
    ) -> int:
        """Store a message; its sequence.

        With `over`, only if the last message of `subject`, or of all subjects that match `among`, has that sequence, 0
        for none; else raises `Conflict`. A message with the same id `once` is stored once within two minutes.
        """
        headers = {"Nats-Msg-Id": once} if once else {}
        if over is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(over)
        if among:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = among
        reply = await self._request(subject, data, headers)
        if reply.error and reply.error.err_code in _WRONG_LAST:
            raise Conflict(subject)
        _check(reply)
        return reply.seq

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message of one subject."""
        try:
            found = await self._bus.request(f"{_API}.DIRECT.GET.{stream}.{subject}", b"", timeout=_TIMEOUT_S)
        except TimeoutError as e:
            raise Unavailable(str(e)) from e
        match found.headers.get("Status"):
            case None:
                return _stored(found)
            case "404":
                return None
            case _:
                raise _refused(found)

    async def count(self, stream: str, subjects: str) -> int:
        """How many messages match."""
        found, behind = await self._page(stream, subjects, 1, 1)
        return len(found) + behind

    async def scan(self, stream: str, subjects: str) -> AsyncIterator[Stored]:
        """All messages that match, in the order of their sequences."""
        start, behind = 1, 1
        while behind:
            found, behind = await self._page(stream, subjects, start, _PAGE)
            for message in found:
                yield message
            start = found[-1].sequence + 1 if found else start

    async def drop(self, stream: str, subjects: str) -> None:
        """Delete all messages that match."""
        _check(await self._ask(f"STREAM.PURGE.{stream}", msgspec.json.encode({"filter": subjects})))

    async def pull(self, stream: str, consumer: str) -> Work | None:
        """The next piece of work, or None when none came for half a minute."""
        async with inbox(self._bus) as own:
            body = {"batch": 1, "expires": int(_PULL_S * 1e9), "idle_heartbeat": int(_HEARTBEAT_S * 1e9)}
            await self._bus.publish(
                f"{_API}.CONSUMER.MSG.NEXT.{stream}.{consumer}", msgspec.json.encode(body), reply=own.subject
            )
            try:
                while True:
                    delivery = await _next(own.box, 2 * _HEARTBEAT_S + 1.0)
                    match delivery.headers.get("Status"):
                        case None:
                            return Work(self._bus, delivery, ACK_WAIT_S)
                        case "100":
                            continue
                        case "404" | "408":
                            return None
                        case _:
                            raise _refused(delivery)
            finally:
                await give_back(self._bus, own.box)

    async def _page(self, stream: str, subjects: str, start: int, most: int) -> tuple[list[Stored], int]:
        """Up to `most` messages from sequence `start` on, and how many are behind them."""
        found: list[Stored] = []
        behind = 0
        async with inbox(self._bus) as own:
            body = {"seq": start, "next_by_subj": subjects, "batch": most, "max_bytes": _PAGE_BYTES}
            subject = f"{_API}.DIRECT.GET.{stream}"
            await self._bus.publish(subject, msgspec.json.encode(body), reply=own.subject)
            while True:
                delivery = await _next(own.box, _TIMEOUT_S)
                match delivery.headers.get("Status"):
                    case None:
                        found.append(_stored(delivery))
                        behind = int(delivery.headers["Nats-Num-Pending"])
                    case "204" | "404":
                        return found, behind
                    case _:
                        raise _refused(delivery)

    async def _ask(self, operation: str, body: bytes) -> _Reply:
        return await self._request(f"{_API}.{operation}", body, {})

    async def _request(self, subject: str, data: bytes, headers: Mapping[str, str]) -> _Reply:
        try:
            reply = await self._bus.request(subject, data, timeout=_TIMEOUT_S, headers=headers)
        except TimeoutError as e:
            raise Unavailable(str(e)) from e
        try:
            return msgspec.json.decode(reply.data, type=_Reply)
        except msgspec.MsgspecError as e:
            raise Unavailable(f"JetStream answered {subject} with something else: {e}") from e


async def _next(box: asyncio.Queue[Delivery], timeout: float) -> Delivery:
    try:
        async with asyncio.timeout(timeout):
            return await box.get()
    except TimeoutError as e:
        raise Unavailable("JetStream is silent") from e


def _check(reply: _Reply) -> None:
    if reply.error:
        raise Unavailable(f"JetStream: {reply.error.description}")


def _refused(delivery: Delivery) -> Unavailable:
    return Unavailable(f"JetStream: {delivery.headers.get('Description', '').strip() or 'no answer'}")


def _stored(delivery: Delivery) -> Stored:
    headers = delivery.headers
    return Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), delivery.data)

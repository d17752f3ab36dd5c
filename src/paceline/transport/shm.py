"""The transport of one host: pages are copied straight into the owner's memory, in one copy and without a
message.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from paceline.contracts.errors import ProtocolError, Unavailable
from paceline.contracts.messages import Refused, ShmTransfer
from paceline.transport.arena import Arena, Mapping
from paceline.transport.exporter import Exporter
from paceline.transport.handshake import LINE_BYTES, Hello, decode_answer, line
from paceline.transport.interface import Transport
from paceline.transport.pages import ShmPages

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 1.0


class ShmTransport(Transport):
    """`Transport` over memfd arenas, whose descriptors travel over unix sockets in a directory that the
    workers of the host share.
    """

    def __init__(self, arena: Arena | None, directory: Path, worker: str, incarnation: str) -> None:
        """`incarnation` names one life of the arena; the arena stays the caller's to close, after this
        transport.
        """
        self._worker = worker
        self._incarnation = incarnation
        self._path = directory / f"{worker}.sock"
        self._lost_callbacks: list[Callable[[str], None]] = []
        self._exporter = (
            None if arena is None else Exporter(arena.fd, self._path, incarnation, self._peer_lost)
        )
        self._mappings: dict[ShmTransfer, ShmPages] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._connects: set[asyncio.Task[ShmPages]] = set()

    @property
    def params(self) -> ShmTransfer:
        if self._exporter is None:
            raise Unavailable(f"{self._worker} has no arena")
        return ShmTransfer(socket=str(self._path), incarnation=self._incarnation)

    async def start(self) -> None:
        """Raises `InvalidRequest` when the socket's path is too long, `Unavailable` when another process
        serves it.
        """
        if self._exporter is not None:
            self._exporter.start()

    def on_peer_lost(self, callback: Callable[[str], None]) -> None:
        self._lost_callbacks.append(callback)

    async def connect(self, params: ShmTransfer) -> ShmPages:
        known = self._mappings.get(params)
        if known is not None and not known.lost:
            return known
        # A caller that is cancelled must not cut the connection: the owner would take this whole process for dead.
        task = asyncio.create_task(self._connect(params), name=f"connect {params.socket}")
        self._connects.add(task)
        task.add_done_callback(self._connected)
        return await asyncio.shield(task)

    async def _connect(self, params: ShmTransfer) -> ShmPages:
        # One owner that hangs must not keep others from connecting, hence a lock per socket.
        async with self._locks.setdefault(params.socket, asyncio.Lock()):
            known = self._mappings.get(params)
            if known is not None and not known.lost:
                return known
            for other, pages in list(self._mappings.items()):
                if pages.lost or other.socket == params.socket:
                    self._mappings.pop(other).close()
            pages = await self._map(params)
            self._mappings[params] = pages
            return pages

    def has_peer(self, worker: str) -> bool:
        return self._exporter is not None and self._exporter.has_peer(worker)

    async def recall(self, worker: str) -> None:
        if self._exporter is not None:
            await self._exporter.recall(worker)

    def _connected(self, task: asyncio.Task[ShmPages]) -> None:
        self._connects.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled, and asyncio complains of errors that nobody saw

    async def close(self) -> None:
        for task in self._connects:
            task.cancel()
        if self._connects:
            await asyncio.wait(self._connects)
        for pages in self._mappings.values():
            pages.close()
        self._mappings.clear()
        if self._exporter is not None:
            await self._exporter.close()

    def _peer_lost(self, worker: str) -> None:
        for callback in self._lost_callbacks:
            callback(worker)

    async def _map(self, params: ShmTransfer) -> ShmPages:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                fd = await self._ask(connection, params)
            try:
                mapping = Mapping.of(fd)
            finally:
                os.close(fd)
        except (OSError, TimeoutError, ProtocolError) as e:
            connection.close()
            reason = str(e) or f"no answer within {CONNECT_SECONDS:g} s"
            raise Unavailable(f"the arena at {params.socket} cannot be mapped: {reason}") from e
        except BaseException:
            connection.close()
            raise
        log.info("arena_mapped", socket=params.socket, pages=len(mapping.tags))
        return ShmPages(mapping, connection, params.socket)

    async def _ask(self, connection: socket.socket, params: ShmTransfer) -> int:
        """The arena's descriptor, from its owner."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, params.socket)
        hello = Hello(worker=self._worker, incarnation=self._incarnation, arena=params.incarnation)
        await loop.sock_sendall(connection, line(hello))
        await _readable(connection)
        data, fds, _, _ = socket.recv_fds(connection, LINE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        try:
            answer = decode_answer(data)
            if isinstance(answer, Refused):
                raise Unavailable(answer.message)
            if not fds:
                raise ProtocolError("the owner sent no descriptor")
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return fds[0]


async def _readable(connection: socket.socket) -> None:
    """Wait for bytes without taking them: the event loop's own receive would drop the descriptor that they
    carry.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)

"""The owner's side of an arena's socket: hands the descriptor out and watches who has it."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from paceline.contracts.errors import InvalidRequest, PacelineError, ProtocolError, Unavailable
from paceline.contracts.messages import Refused
from paceline.transport.handshake import LINE_BYTES, Hello, Welcome, decode_hello, line

log = structlog.get_logger(__name__)

HELLO_SECONDS = 5.0

# sockaddr_un has 108 bytes, the last of which ends the string.
_PATH_BYTES = 107
# struct ucred: pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")


@dataclass(eq=False, frozen=True)
class _Peer:
    """A process that has the descriptor, until `ended`."""

    hello: Hello
    connection: socket.socket
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def life(self) -> tuple[str, str]:
        return (self.hello.worker, self.hello.incarnation)


class Exporter:
    """Serves one arena's descriptor on a unix socket to processes of the same user."""

    def __init__(self, fd: int, path: Path, incarnation: str, lost: Callable[[str], None]) -> None:
        """`lost` is called on the event loop with a worker id when the last connection of one life of it
        ends.
        """
        self._fd = fd
        self._path = path
        self._incarnation = incarnation
        self._lost = lost
        self._peers: set[_Peer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._inode = 0

    def start(self) -> None:
        """Raises `InvalidRequest` for a path too long for a socket, `Unavailable` when a live process
        serves it.
        """
        self._listener = _listen(self._path)
        self._inode = self._path.stat().st_ino
        self._spawn(self._accept(self._listener))

    async def close(self) -> None:
        """Refuse new peers and drop the present ones, without calling them lost."""
        if self._listener is None:
            return
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._listener = None
        # A successor may already listen at the same path.
        if self._path.exists() and self._path.stat().st_ino == self._inode:
            self._path.unlink()

    def has_peer(self, worker: str) -> bool:
        """Whether a process of `worker` may have the arena mapped."""
        return any(peer.hello.worker == worker for peer in self._peers)

    async def recall(self, worker: str) -> None:
        """Make `worker` unmap the arena; returns when each mapping that it had at the call is gone."""
        peers = [p for p in self._peers if p.hello.worker == worker]
        for peer in peers:
            # The end of our half is the sign to let go; a peer that died meanwhile has done so.
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_WR)
        for peer in peers:
            await peer.ended.wait()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError as e:
                # Out of descriptors, most likely: peers wait in the backlog until some are free.
                log.warning("arena_accept_failed", error=str(e))
                await asyncio.sleep(0.1)
                continue
            peer.setblocking(False)
            self._spawn(self._serve(peer))

    async def _serve(self, connection: socket.socket) -> None:
        """One connection, from the hello to the end of the peer."""
        with connection:
            try:
                hello = await self._greet(connection)
            except (PacelineError, TimeoutError, OSError) as e:
                log.warning("arena_peer_refused", path=str(self._path), error=str(e))
                return
            peer = _Peer(hello, connection)
            # Known before the descriptor leaves, so that nobody has it unwatched.
            self._peers.add(peer)
            try:
                socket.send_fds(connection, [line(Welcome())], [self._fd])
                await _end_of(connection)
            except OSError as e:
                log.info("arena_peer_broke", peer=hello.worker, error=str(e))
            finally:
                self._peers.discard(peer)
                peer.ended.set()
        if all(other.life != peer.life for other in self._peers):
            log.info("arena_peer_lost", peer=hello.worker, peer_incarnation=hello.incarnation)
            self._lost(hello.worker)

    async def _greet(self, peer: socket.socket) -> Hello:
        """The peer's hello, once it may have the arena; a peer that may not is told why."""
        _, uid, _ = _CREDENTIALS.unpack(
            peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid != os.geteuid():
            raise Unavailable(f"a process of user {uid} asked for an arena of user {os.geteuid()}")
        async with asyncio.timeout(HELLO_SECONDS):
            hello = decode_hello(await _read_line(peer))
        if hello.arena != self._incarnation:
            refusal = Unavailable(f"this is arena {self._incarnation}, not {hello.arena}")
            peer.send(line(Refused(code=refusal.code, message=refusal.message)))
            raise refusal
        return hello


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, in a directory that only this user can enter."""
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise InvalidRequest(
            f"{path} exceeds the {_PATH_BYTES} bytes of a socket path: choose a shorter PACELINE_RUN_DIR"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _answers(path):
        raise Unavailable(f"another live process serves {path}")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    """Whether a live process listens at `path`; a socket file outlives the process that was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True  # its backlog is full
    return True


async def _read_line(peer: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while not data.endswith(b"\n"):
        if len(data) > LINE_BYTES:
            raise ProtocolError(f"a hello of more than {LINE_BYTES} bytes")
        chunk = await loop.sock_recv(peer, LINE_BYTES)
        if not chunk:
            raise ProtocolError("the peer left before its hello")
        data += chunk
    return data


async def _end_of(peer: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while await loop.sock_recv(peer, LINE_BYTES):
        pass

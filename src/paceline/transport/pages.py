"""The peer's side of an arena: checked copies in and out of another worker's pages."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from paceline.contracts.errors import ProtocolError, Unavailable
from paceline.contracts.messages import PageRef
from paceline.transport.arena import Mapping
from paceline.transport.interface import Bytes, RemotePages, StalePage


class ShmPages(RemotePages):
    """`RemotePages` over a mapped arena. Owns `connection`, which both sides watch: it ends for the owner
    when the last copy has ended after `close`, and for this side when the owner dies or recalls the arena,
    which closes.
    """

    def __init__(self, mapping: Mapping, connection: socket.socket, owner: str) -> None:
        """Needs a running event loop."""
        self._mapping: Mapping | None = mapping
        self._connection = connection
        self._owner = owner
        self._lock = threading.Lock()
        self._closed = False
        # The copies that run, and one until `close`.
        self._users = 1
        self._loop = asyncio.get_running_loop()
        # A mapping would keep the memory of a dead owner.
        self._loop.add_reader(connection, self.close)

    @property
    def lost(self) -> bool:
        """Whether the owner is gone, or this mapping closed."""
        if self._closed:
            return True
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def write(self, refs: Sequence[PageRef], pages: Sequence[Bytes]) -> None:
        with self._copying() as mapping:
            _check_shapes(mapping, refs, pages)
            for ref, page in zip(refs, pages, strict=True):
                _compare(mapping, ref)
                np.copyto(mapping.pages[ref.page], page)
                _compare(mapping, ref)

    def read(self, refs: Sequence[PageRef], out: Sequence[Bytes]) -> None:
        with self._copying() as mapping:
            _check_shapes(mapping, refs, out)
            for ref, page in zip(refs, out, strict=True):
                _compare(mapping, ref)
                np.copyto(page, mapping.pages[ref.page])
                _compare(mapping, ref)

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._loop.remove_reader(self._connection)
            self._let_go()

    @contextmanager
    def _copying(self) -> Iterator[Mapping]:
        """The mapping, kept until the block ends: the owner takes the end of the connection for the end of
        writes.
        """
        with self._lock:
            mapping = self._mapping
            if mapping is None or self.lost:
                raise Unavailable(f"the pages of {self._owner} are gone")
            self._users += 1
        try:
            yield mapping
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._mapping = None
            self._connection.close()


def _check_shapes(mapping: Mapping, refs: Sequence[PageRef], arrays: Sequence[Bytes]) -> None:
    if len(refs) != len(arrays):
        raise ProtocolError(f"{len(refs)} page references for {len(arrays)} pages")
    pages, page_bytes = mapping.pages.shape
    for ref, array in zip(refs, arrays, strict=True):
        if not 0 <= ref.page < pages:
            raise StalePage(ref.page, ref.tag, None)
        # copyto would broadcast a single byte over the whole page.
        if array.shape != (page_bytes,) or array.dtype != np.uint8:
            raise ProtocolError(f"{array.dtype} {array.shape} is no page of {page_bytes} bytes")


def _compare(mapping: Mapping, ref: PageRef) -> None:
    found = int(mapping.tags[ref.page])
    if found != ref.tag:
        raise StalePage(ref.page, ref.tag, found)

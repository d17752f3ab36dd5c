"""A page pool in memory that other processes can map: one memfd, gone from the kernel with its last user."""

import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.contracts.errors import InvalidRequest, ProtocolError, Unavailable
from paceline.transport import header

Pages: TypeAlias = npt.NDArray[np.uint8]
Tags: TypeAlias = npt.NDArray[np.uint64]

# Without these seals a process could shrink the file under a peer's mapping and kill it with SIGBUS.
_SEALS = 0 if not hasattr(fcntl, "F_SEAL_SHRINK") else fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

# 10 to 20 ms of work.
_POPULATED_AT_ONCE = 16 << 20


class Arena:
    """The owner's side of a page pool.

    `pages` is uint8 [n, page_bytes] and `tags` uint64 [n], both zero at first; memory is taken from the
    system as pages are first touched. `close` gives the descriptor and these two views back; the memory
    itself goes when the last array that was made from them, and the last peer, are gone.
    """

    pages: Pages
    tags: Tags

    def __init__(self, fd: int, layout: header.Header, pages: Pages, tags: Tags) -> None:
        self.fd = fd
        self.page_bytes = layout.page_bytes
        self.pages = pages
        self.tags = tags

    @classmethod
    def create(cls, pages: int, page_bytes: int) -> "Arena":
        """Raises `InvalidRequest` for an empty arena, `Unavailable` on a system without memfd."""
        if pages < 1 or page_bytes < 1:
            raise InvalidRequest(f"an arena of {pages} pages of {page_bytes} bytes holds nothing")
        if not hasattr(os, "memfd_create"):
            raise Unavailable("shared-memory arenas need memfd_create, which only Linux has")
        layout = header.plan(pages, page_bytes)
        fd = os.memfd_create("paceline-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, layout.size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            memory = mmap.mmap(fd, layout.size)
        except BaseException:
            os.close(fd)
            raise
        encoded = header.encode(layout)
        memory[: len(encoded)] = encoded
        tags = np.frombuffer(memory, np.uint64, pages, layout.tags_offset)
        data = np.frombuffer(memory, np.uint8, pages * page_bytes, layout.data_offset)
        return cls(fd, layout, data.reshape(pages, page_bytes), tags)

    def populate(self) -> None:
        """Take all the memory from the system, unless the arena is closed meanwhile; blocks without the GIL. Changes
        nothing, so that others may use pages already: even a read makes a page of a memfd real.

        A first touch is ten times slower than a copy (1.4 GB/s against 12), and would fall into the first handoffs.
        """
        pages = self.pages
        at_once = max(1, _POPULATED_AT_ONCE // self.page_bytes)
        for start in range(0, len(pages), at_once):
            if self.fd < 0:
                return
            pages[start : start + at_once, :: mmap.PAGESIZE].max()

    def close(self) -> None:
        """Idempotent."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        del self.pages, self.tags


@dataclass(frozen=True, slots=True)
class Mapping:
    """A peer's view of an arena: `pages` uint8 [n, page_bytes] writable, `tags` uint64 [n] read-only."""

    pages: Pages
    tags: Tags

    @classmethod
    def of(cls, fd: int) -> "Mapping":
        """Map the arena behind `fd`, which stays the caller's to close.

        Raises `ProtocolError` when it is not an arena or could still be shrunk.
        """
        size = os.fstat(fd).st_size
        layout = header.decode(os.pread(fd, header.HEADER_BYTES, 0), size)
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ProtocolError("the arena is not sealed against a change of its size")
        # Two mappings, because only the owner may write tags.
        head = mmap.mmap(fd, layout.data_offset, prot=mmap.PROT_READ)
        body = mmap.mmap(fd, layout.size - layout.data_offset, offset=layout.data_offset)
        tags = np.frombuffer(head, np.uint64, layout.pages, layout.tags_offset)
        data = np.frombuffer(body, np.uint8, layout.pages * layout.page_bytes)
        return cls(data.reshape(layout.pages, layout.page_bytes), tags)

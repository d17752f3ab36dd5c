"""The first bytes of an arena: what a peer must know, and check, before it maps the rest.

    [0, 4096)                       header, zero-padded
    [4096, 4096 + 8 * pages)        one uint64 tag per page
    [data_offset, size)             the pages; data_offset is a multiple of the granularity of mmap

All fields are little-endian.
"""

import mmap
import struct
from dataclasses import dataclass

from paceline.contracts.errors import ProtocolError

HEADER_BYTES = 4096
MAGIC = b"PACELNKV"
VERSION = 1

_FIELDS = struct.Struct("<8sI4xQQQQ")
_GRANULARITY = max(4096, mmap.ALLOCATIONGRANULARITY)


@dataclass(frozen=True, slots=True)
class Header:
    """Sizes and offsets of an arena, in bytes except `pages`."""

    pages: int
    page_bytes: int
    tags_offset: int
    data_offset: int

    @property
    def size(self) -> int:
        return self.data_offset + self.pages * self.page_bytes


def plan(pages: int, page_bytes: int) -> Header:
    """The header of a new arena."""
    tags_end = HEADER_BYTES + 8 * pages
    return Header(pages, page_bytes, HEADER_BYTES, -(-tags_end // _GRANULARITY) * _GRANULARITY)


def encode(header: Header) -> bytes:
    """The fields as they stand at offset 0 of the arena."""
    return _FIELDS.pack(
        MAGIC, VERSION, header.pages, header.page_bytes, header.tags_offset, header.data_offset
    )


def decode(data: bytes, size: int) -> Header:
    """The header of an arena of `size` bytes.

    Raises `ProtocolError` for anything whose tags and pages would not lie in order inside those bytes.
    """
    if len(data) < _FIELDS.size:
        raise ProtocolError(f"arena header of {len(data)} bytes")
    magic, version, pages, page_bytes, tags_offset, data_offset = _FIELDS.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise ProtocolError(f"arena header {magic!r} of version {version}, expected {MAGIC!r} of {VERSION}")
    header = Header(pages, page_bytes, tags_offset, data_offset)
    fits = (
        pages > 0
        and page_bytes > 0
        and tags_offset >= HEADER_BYTES
        and tags_offset % 8 == 0
        and data_offset >= tags_offset + 8 * pages
        and data_offset % _GRANULARITY == 0
        and header.size <= size
    )
    if not fits:
        raise ProtocolError(f"{header} does not fit an arena of {size} bytes")
    return header

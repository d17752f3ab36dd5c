import mmap
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import ProtocolError
from paceline.transport import header

SIZES = {"pages": st.integers(1, 1 << 24), "page_bytes": st.integers(1, 1 << 26)}


def test_the_offsets_of_a_small_arena() -> None:
    plan = header.plan(pages=8, page_bytes=100)
    granularity = max(4096, mmap.ALLOCATIONGRANULARITY)
    assert plan.tags_offset == 4096
    assert plan.data_offset == max(2 * 4096, granularity)
    assert plan.size == plan.data_offset + 800


def test_tags_that_fill_a_system_page_do_not_waste_another() -> None:
    assert header.plan(pages=7680, page_bytes=1).data_offset == 65536


def test_the_encoding_is_fixed() -> None:
    data = header.encode(header.Header(3, 5, 4096, 8192))
    assert data == b"PACELNKV" + struct.pack("<I4xQQQQ", 1, 3, 5, 4096, 8192)


@settings(deadline=None)
@given(**SIZES)
def test_a_header_survives_its_encoding(pages: int, page_bytes: int) -> None:
    plan = header.plan(pages, page_bytes)
    padded = header.encode(plan).ljust(header.HEADER_BYTES, b"\0")
    assert header.decode(padded, plan.size) == plan


@settings(deadline=None)
@given(**SIZES)
def test_a_header_of_a_larger_arena_than_the_file_is_refused(pages: int, page_bytes: int) -> None:
    plan = header.plan(pages, page_bytes)
    with pytest.raises(ProtocolError):
        header.decode(header.encode(plan), plan.size - 1)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_bytes_that_are_no_header_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        header.decode(data, 1 << 40)


@settings(deadline=None)
@given(fields=st.tuples(*[st.integers(0, 2**64 - 1) | st.integers(0, 20000)] * 4), size=st.integers(0, 2**40))
def test_whatever_is_accepted_lies_inside_the_file(fields: tuple[int, int, int, int], size: int) -> None:
    data = struct.pack("<8sI4xQQQQ", header.MAGIC, header.VERSION, *fields)
    try:
        accepted = header.decode(data, size)
    except ProtocolError:
        return
    assert 4096 <= accepted.tags_offset <= accepted.data_offset - 8 * accepted.pages
    assert accepted.data_offset + accepted.pages * accepted.page_bytes <= size

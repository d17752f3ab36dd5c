"""The token frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import ProtocolError
from paceline.contracts.frames import Tokens, decode_frame, encode_frame, is_frame

ENTRIES = [
    Tokens("000102030405060708090a0b0c0d0e0f", attempt=1, index=0, tokens=(1, -1)),
    Tokens("ff" * 16, attempt=65535, index=4294967295, tokens=()),
    Tokens("ff" * 16, attempt=2, index=258, tokens=(2147483647,)),
]
GOLDEN = bytes.fromhex(
    "a701"
    "000102030405060708090a0b0c0d0e0f"
    "0100"
    "00000000"
    "0200"
    "01000000"
    "ffffffff"
    "ffffffffffffffffffffffffffffffff"
    "ffff"
    "ffffffff"
    "0000"
    "ffffffffffffffffffffffffffffffff"
    "0200"
    "02010000"
    "0100"
    "ffffff7f"
)
BOUNDARIES = {2, 2 + 32, 2 + 32 + 24, 2 + 32 + 24 + 28}

entries = st.lists(
    st.builds(
        Tokens,
        st.binary(min_size=16, max_size=16).map(bytes.hex),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**32 - 1),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(tuple),
    ),
    max_size=5,
)


def test_golden_bytes() -> None:
    assert encode_frame(ENTRIES) == GOLDEN
    assert decode_frame(GOLDEN) == ENTRIES


@given(entries)
def test_any_frame_survives_the_wire(frame: list[Tokens]) -> None:
    data = encode_frame(frame)
    assert is_frame(data)
    assert decode_frame(data) == frame


@pytest.mark.parametrize("end", sorted(set(range(len(GOLDEN))) - BOUNDARIES))
def test_a_frame_that_ends_within_an_entry_is_refused(end: int) -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        decode_frame(GOLDEN[:end])


@pytest.mark.parametrize("data", [b"{}", b"\xa8\x01", b"\xa7\x00", b"\xa7\x02"])
def test_another_magic_or_version_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="token frame"):
        decode_frame(data)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_frame_or_a_protocol_error(tail: bytes) -> None:
    data = b"\xa7\x01" + tail
    try:
        frame = decode_frame(data)
    except ProtocolError:
        return
    assert encode_frame(frame) == data


def test_json_is_no_frame() -> None:
    assert not is_frame(b'{"type":"done"}')
    assert not is_frame(b"")

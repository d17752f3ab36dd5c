"""The token frame."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import ProtocolError
from paceline.contracts.frames import Logprobs, Tokens, decode_frame, encode_frame, is_frame

ENTRIES = [
    Tokens("000102030405060708090a0b0c0d0e0f", attempt=1, index=0, tokens=(1, -1)),
    Tokens("ff" * 16, attempt=65535, index=2147483647, tokens=()),
    Tokens("ff" * 16, attempt=2, index=258, tokens=(2147483647,)),
    Tokens(
        "0f" * 16,
        attempt=3,
        index=259,
        tokens=(7, 8),
        logprobs=(Logprobs(-0.5, ((7, -0.5),)), Logprobs(-2.0, ((9, -0.25),))),
    ),
    Tokens("0f" * 16, attempt=3, index=261, tokens=(7,), logprobs=(Logprobs(-0.0, ()),)),
]
GOLDEN = bytes.fromhex(
    "a702"
    "000102030405060708090a0b0c0d0e0f"
    "0100"
    "00000000"
    "0200"
    "01000000"
    "ffffffff"
    "ffffffffffffffffffffffffffffffff"
    "ffff"
    "ffffff7f"
    "0000"
    "ffffffffffffffffffffffffffffffff"
    "0200"
    "02010000"
    "0100"
    "ffffff7f"
    "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
    "0300"
    "03010080"
    "0200"
    "07000000"
    "08000000"
    "01"
    "000000bf"
    "07000000"
    "000000bf"
    "000000c0"
    "09000000"
    "000080be"
    "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
    "0300"
    "05010080"
    "0100"
    "07000000"
    "00"
    "00000080"
)
BOUNDARIES = {2, 34, 58, 86, 143, 176}

tokens = st.integers(-(2**31), 2**31 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def entries(draw: st.DrawFn) -> Tokens:
    count = draw(st.integers(0, 20))
    ids = draw(st.lists(tokens, min_size=count, max_size=count))
    logprobs: list[Logprobs] = []
    if count and draw(st.booleans()):
        width = draw(st.integers(0, 3))
        tops = st.lists(st.tuples(tokens, floats), min_size=width, max_size=width).map(tuple)
        logprobs = draw(st.lists(st.builds(Logprobs, floats, tops), min_size=count, max_size=count))
    return Tokens(
        draw(st.binary(min_size=16, max_size=16)).hex(),
        draw(st.integers(0, 2**16 - 1)),
        draw(st.integers(0, 2**31 - 1)),
        tuple(ids),
        tuple(logprobs),
    )


def test_golden_bytes() -> None:
    assert encode_frame(ENTRIES) == GOLDEN
    assert decode_frame(GOLDEN) == ENTRIES


@given(st.lists(entries(), max_size=5))
def test_any_frame_survives_the_wire(frame: list[Tokens]) -> None:
    data = encode_frame(frame)
    assert is_frame(data)
    assert decode_frame(data) == frame


@pytest.mark.parametrize("end", sorted(set(range(len(GOLDEN))) - BOUNDARIES))
def test_a_frame_that_ends_within_an_entry_is_refused(end: int) -> None:
    with pytest.raises(ProtocolError, match="truncated"):
        decode_frame(GOLDEN[:end])


@pytest.mark.parametrize("data", [b"{}", b"\xa8\x01", b"\xa7\x01", b"\xa7\x03"])
def test_another_magic_or_version_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="token frame"):
        decode_frame(data)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_frame_or_a_protocol_error(tail: bytes) -> None:
    data = b"\xa7\x02" + tail
    try:
        frame = decode_frame(data)
    except ProtocolError:
        return
    assert encode_frame(frame) == data


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [131, 139])
def test_a_log_probability_is_finite(place: int, value: float) -> None:
    # Of the last entry but one: its second record's own, and that of its alternative.
    damaged = bytearray(GOLDEN)
    struct.pack_into("<f", damaged, place, value)
    with pytest.raises(ProtocolError, match="finite"):
        decode_frame(bytes(damaged))


def test_log_probabilities_belong_to_tokens() -> None:
    with pytest.raises(ProtocolError, match="no token"):
        decode_frame(b"\xa7\x02" + bytes(16) + b"\x01\x00" + b"\x00\x00\x00\x80" + b"\x00\x00" + b"\x00")


@pytest.mark.parametrize(
    "logprobs", [(Logprobs(-1.0, ()),), (Logprobs(-1.0, ()), Logprobs(-1.0, ((1, -1.0),)))]
)
def test_log_probabilities_that_do_not_fit_their_tokens_are_not_sent(logprobs: tuple[Logprobs, ...]) -> None:
    with pytest.raises(ValueError, match="one for each token"):
        encode_frame([Tokens("0f" * 16, 1, 0, (7, 8), logprobs)])


def test_json_is_no_frame() -> None:
    assert not is_frame(b'{"type":"done"}')
    assert not is_frame(b"")

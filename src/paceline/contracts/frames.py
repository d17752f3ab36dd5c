"""The token frame: one binary message per decode step per gateway.

    frame   = magic u8 (0xA7) | version u8 | entry*
    entry   = request id 16 bytes | attempt u16 | index u32 | count u16 | token int32 * count       little-endian
              and, where the top bit of the index is set,   width u8 | record * count
    record  = logprob f32 | (token int32 | logprob f32) * width

`index` numbers the first token of the entry, counted from the request's first output token (0) over all attempts,
so that the gateway sees gaps and repeats. The magic byte is no JSON, which tells frames from events on one subject.
"""

import math
import struct
from collections.abc import Iterable
from itertools import chain

import msgspec

from paceline.contracts.errors import ProtocolError

MAGIC = 0xA7
VERSION = 2

_HEADER = struct.Struct("<BB")
_ENTRY = struct.Struct("<16sHIH")
_TOKEN = struct.Struct("<i")
_WITH_LOGPROBS = 1 << 31


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities: a token's own, and of the likeliest (token, logprob), likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


# A struct, as there is one for each token: 0.2 us instead of 1.2 us for a frozen dataclass.
class Tokens(msgspec.Struct, frozen=True):
    """Consecutive output tokens of one attempt. `request_id` is 32 hex digits, `index` less than 2**31.

    `logprobs` are one for each token, all with as many alternatives, or none at all.
    """

    request_id: str
    attempt: int
    index: int
    tokens: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


def encode_frame(entries: Iterable[Tokens]) -> bytes:
    """The bytes of one frame."""
    parts = [_HEADER.pack(MAGIC, VERSION)]
    for entry in entries:
        tokens = entry.tokens
        index = entry.index | _WITH_LOGPROBS if entry.logprobs else entry.index
        parts.append(_ENTRY.pack(bytes.fromhex(entry.request_id), entry.attempt, index, len(tokens)))
        parts.append(_TOKEN.pack(*tokens) if len(tokens) == 1 else struct.pack(f"<{len(tokens)}i", *tokens))
        if entry.logprobs:
            parts.append(_encode_logprobs(entry))
    return b"".join(parts)


def is_frame(data: bytes) -> bool:
    """Whether `data` is a token frame and not a JSON event."""
    return data[:1] == b"\xa7"


def decode_frame(data: bytes) -> list[Tokens]:
    """The entries of a frame. Raises `ProtocolError` for anything but a whole frame of this version."""
    try:
        magic, version = _HEADER.unpack_from(data)
        if (magic, version) != (MAGIC, VERSION):
            raise ProtocolError(
                f"token frame {magic:#x} of version {version}, expected {MAGIC:#x} of {VERSION}"
            )
        entries = []
        offset = _HEADER.size
        while offset < len(data):
            request_id, attempt, index, count = _ENTRY.unpack_from(data, offset)
            offset += _ENTRY.size
            # Nearly always one.
            tokens = (_TOKEN if count == 1 else struct.Struct(f"<{count}i")).unpack_from(data, offset)
            offset += 4 * count
            if index < _WITH_LOGPROBS:
                entries.append(Tokens(request_id.hex(), attempt, index, tokens))
                continue
            logprobs, offset = _decode_logprobs(data, offset, count)
            entries.append(Tokens(request_id.hex(), attempt, index - _WITH_LOGPROBS, tokens, logprobs))
    except struct.error as e:
        raise ProtocolError(f"truncated token frame of {len(data)} bytes") from e
    return entries


def _record(width: int) -> struct.Struct:
    return struct.Struct("<f" + "if" * width)


def _encode_logprobs(entry: Tokens) -> bytes:
    width = len(entry.logprobs[0].top)
    if len(entry.logprobs) != len(entry.tokens) or any(len(one.top) != width for one in entry.logprobs):
        raise ValueError("log probabilities are one for each token, with as many alternatives")
    record = _record(width)
    records = (record.pack(one.logprob, *chain.from_iterable(one.top)) for one in entry.logprobs)
    return bytes((width,)) + b"".join(records)


def _decode_logprobs(data: bytes, offset: int, count: int) -> tuple[tuple[Logprobs, ...], int]:
    """The records of `count` tokens, and where the next entry begins."""
    if count == 0:
        raise ProtocolError("log probabilities of no token in a token frame")
    (width,) = struct.unpack_from("<B", data, offset)
    record = _record(width)
    begin, end = offset + 1, offset + 1 + count * record.size
    logprobs = []
    for place in range(begin, end, record.size):
        own, *rest = record.unpack_from(data, place)
        top = tuple(zip(rest[::2], rest[1::2], strict=True))
        if not all(map(math.isfinite, (own, *rest[1::2]))):
            raise ProtocolError("a log probability in a token frame is not finite")
        logprobs.append(Logprobs(own, top))
    return tuple(logprobs), end

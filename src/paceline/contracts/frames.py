"""The token frame: one binary message per decode step per gateway.

    frame   = magic u8 (0xA7) | version u8 | entry*
    entry   = request id 16 bytes | attempt u16 | index u32 | count u16 | token int32 * count       little-endian

`index` numbers the first token of the entry, counted from the request's first output token (0) over all attempts,
so that the gateway sees gaps and repeats. The magic byte is no JSON, which tells frames from events on one subject.
"""

import struct
from collections.abc import Iterable

import msgspec

from paceline.contracts.errors import ProtocolError

MAGIC = 0xA7
VERSION = 1

_HEADER = struct.Struct("<BB")
_ENTRY = struct.Struct("<16sHIH")
_TOKEN = struct.Struct("<i")


# A struct, as there is one for each token: 0.2 us instead of 1.2 us for a frozen dataclass.
class Tokens(msgspec.Struct, frozen=True):
    """Consecutive output tokens of one attempt. `request_id` is 32 hex digits."""

    request_id: str
    attempt: int
    index: int
    tokens: tuple[int, ...]


def encode_frame(entries: Iterable[Tokens]) -> bytes:
    """The bytes of one frame."""
    parts = [_HEADER.pack(MAGIC, VERSION)]
    for entry in entries:
        tokens = entry.tokens
        parts.append(_ENTRY.pack(bytes.fromhex(entry.request_id), entry.attempt, entry.index, len(tokens)))
        parts.append(_TOKEN.pack(*tokens) if len(tokens) == 1 else struct.pack(f"<{len(tokens)}i", *tokens))
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
            entries.append(Tokens(request_id.hex(), attempt, index, tokens))
    except struct.error as e:
        raise ProtocolError(f"truncated token frame of {len(data)} bytes") from e
    return entries

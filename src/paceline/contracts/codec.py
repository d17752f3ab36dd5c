"""Messages to bytes and back; the only place that knows the wire is JSON."""

from typing import Any, Generic, TypeVar

import msgspec

from paceline.contracts.errors import ProtocolError
from paceline.contracts.messages import VERSION

M = TypeVar("M")

_encoder = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """The JSON bytes of a message."""
    return _encoder.encode(message)


class Decoder(Generic[M]):
    """Decodes one message type or union; kept, because building one costs more than using it."""

    def __init__(self, message_type: Any) -> None:
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(message_type)

    def __call__(self, data: bytes) -> M:
        """Raises `ProtocolError` for bytes that are no such message of this version."""
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError as e:
            raise ProtocolError(f"{e} in {bytes(data[:80])!r}") from e
        version = getattr(message, "v", VERSION)
        if version != VERSION:
            raise ProtocolError(f"message of protocol version {version}, this side speaks {VERSION}")
        return message

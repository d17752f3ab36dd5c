"""What is said on an arena's socket: one line from the peer, one line back with the arena's descriptor
attached.

After that neither side sends a byte. The connection stays open as the sign of life of both.
"""

from typing import TypeAlias

from paceline.contracts.codec import Decoder, encode
from paceline.contracts.messages import VERSION, Message, Refused

LINE_BYTES = 4096
"""No line is longer."""


class Hello(Message, frozen=True, tag="hello"):
    """The peer names itself, and the incarnation of the arena that it was told to reach."""

    worker: str
    incarnation: str
    arena: str
    v: int = VERSION


class Welcome(Message, frozen=True, tag="welcome"):
    """The arena's descriptor comes with this line."""

    v: int = VERSION


Answer: TypeAlias = Welcome | Refused

decode_hello: Decoder[Hello] = Decoder(Hello)
decode_answer: Decoder[Answer] = Decoder(Answer)


def line(message: Hello | Answer) -> bytes:
    """The message as it goes on the socket."""
    return encode(message) + b"\n"

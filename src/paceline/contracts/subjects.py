"""Every subject of the mesh beside the types that travel on it.

paceline.<role>.<worker>.<verb>    an `Endpoint`: request and reply
paceline.load.<role>.<worker>      beacons
paceline.gw.<gateway>              token frames and events for one gateway
"""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from paceline.contracts import messages as m
from paceline.contracts.codec import Decoder

Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True)
class Endpoint(Generic[Q, R]):
    """A verb that workers answer, with the types of its request and of its reply."""

    verb: str
    request: Any
    reply: Any
    description: str
    decode_request: Decoder[Q] = field(init=False, repr=False, compare=False)
    decode_reply: Decoder[R] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decode_request", Decoder[Q](self.request))
        # Any endpoint may refuse instead of answering.
        object.__setattr__(self, "decode_reply", Decoder[R](self.reply | m.Refused))

    def subject(self, role: m.Role, worker: str) -> str:
        return f"paceline.{role}.{worker}.{self.verb}"


PREFILL = Endpoint[m.Prefill, m.Ack]("prefill", m.Prefill, m.Ack, "run a prompt and hand its pages over")
GENERATE = Endpoint[m.Generate, m.Ack]("generate", m.Generate, m.Ack, "generate tokens after a prompt")
CANCEL = Endpoint[m.Cancel, m.Ack]("cancel", m.Cancel, m.Ack, "forget a request and free what it holds")
RESEND = Endpoint[m.Resend, m.Ack]("resend", m.Resend, m.Ack, "publish the events of an attempt again")
CONFIRM = Endpoint[m.Confirm, m.Ack]("confirm", m.Confirm, m.Ack, "the terminal event arrived")
DRAIN = Endpoint[m.Drain, m.Ack]("drain", m.Drain, m.Ack, "take no new work, finish, leave")

ADMIT = Endpoint[m.Admit, m.Ack]("admit", m.Admit, m.Ack, "decode has room for a handoff")
COMMIT = Endpoint[m.Commit, m.Ack]("commit", m.Commit, m.Ack, "all pages of a handoff are written")
WITHDRAW = Endpoint[m.Withdraw, m.Ack]("withdraw", m.Withdraw, m.Ack, "give a handoff up")

LOOKUP = Endpoint[m.Lookup, m.Lease]("lookup", m.Lookup, m.Lease, "pin the longest stored prefix")
RESERVE = Endpoint[m.Reserve, m.Reserved]("reserve", m.Reserve, m.Reserved, "make room for pages")
PUBLISH = Endpoint[m.Publish, m.Ack]("publish", m.Publish, m.Ack, "make written pages visible")
RELEASE = Endpoint[m.Release, m.Ack]("release", m.Release, m.Ack, "end a lease")

DRAFT_OPEN = Endpoint[m.DraftOpen, m.Proposals]("open", m.DraftOpen, m.Proposals, "start drafting a sequence")
DRAFT_PROPOSE = Endpoint[m.Propose, m.Proposals](
    "propose", m.Propose, m.Proposals, "commit tokens, get drafts"
)
DRAFT_CLOSE = Endpoint[m.DraftClose, m.Ack]("close", m.DraftClose, m.Ack, "stop drafting a sequence")

decode_event: Decoder[m.Event] = Decoder(m.Event)
decode_beacon: Decoder[m.Beacon] = Decoder(m.Beacon)


HELLO = "paceline.hello"


def beacon(role: str, worker: str) -> str:
    """Where a worker's beacons go; `*` for either part subscribes to all."""
    return f"paceline.load.{role}.{worker}"


def events(gateway: str) -> str:
    """Where the frames and events for one gateway go."""
    return f"paceline.gw.{gateway}"

"""The replies of the NATS micro service protocol, which `nats micro ls|info|stats|ping` read.

The tool drops a reply without a word if it does not match its schema: `description` and `last_error` are strings and
never null, metadata values are strings, times are integers of nanoseconds and `started` is RFC 3339.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec

from paceline.bus.identity import Identity
from paceline.contracts.errors import PacelineError

VERSION = version("paceline")

# The protocol wants a number beside the text of an error.
_STATUS = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "busy": 429,
    "worker_lost": 502,
    "unavailable": 503,
}


class EndpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint in an INFO reply."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: dict[str, str] = {}


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint in a STATS reply; times in nanoseconds. `data` is free for the service."""

    name: str
    subject: str
    queue_group: str = ""
    num_requests: int
    num_errors: int
    last_error: str
    processing_time: int
    average_processing_time: int
    data: dict[str, Any]


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.ping_response"):
    """Reply to $SRV.PING: `name` is the role and `id` the worker."""

    name: str
    id: str
    version: str
    metadata: dict[str, str]


class Info(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.info_response"):
    """Reply to $SRV.INFO."""

    name: str
    id: str
    version: str
    metadata: dict[str, str]
    description: str
    endpoints: list[EndpointInfo]


class Stats(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="io.nats.micro.v1.stats_response"
):
    """Reply to $SRV.STATS."""

    name: str
    id: str
    version: str
    metadata: dict[str, str]
    started: str
    endpoints: list[EndpointStats]


@dataclass
class Counters:
    """What one endpoint did since the service started; `busy_ns` adds up over handlers that run at once."""

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    busy_ns: int = 0

    def stats(self, name: str, subject: str, data: dict[str, Any]) -> EndpointStats:
        """As STATS shows them."""
        return EndpointStats(
            name=name,
            subject=subject,
            num_requests=self.requests,
            num_errors=self.errors,
            last_error=self.last_error,
            processing_time=self.busy_ns,
            average_processing_time=self.busy_ns // max(self.requests, 1),
            data=data,
        )


def started(identity: Identity) -> str:
    """When this life began, as RFC 3339 in UTC."""
    return (
        datetime.fromtimestamp(identity.started, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def error_headers(error: PacelineError) -> dict[str, str]:
    """The headers that mark a reply as an error, for tools that do not know our messages."""
    text = " ".join(error.message.split()).encode("ascii", "replace").decode()
    return {
        "Nats-Service-Error": f"{error.code}: {text}",
        "Nats-Service-Error-Code": str(_STATUS.get(error.code, 500)),
    }

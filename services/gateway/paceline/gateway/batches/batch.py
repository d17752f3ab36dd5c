"""A batch and the states that it goes through.

    validating ── begun ──► in_progress ── closing ──► finalizing ── ended ──► completed or expired
        │  │                    │                          ▲   └─────────────► cancelled
        │  └─────── cancelling ◄┘ ──────── closing ────────┘
        └── failed

A batch is validating while its items are being queued. Finalizing freezes what its files will hold; from then on
nothing of it changes, whoever still works on an item.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.names import Outcome

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
Final: TypeAlias = Literal["completed", "expired", "cancelled"]

WINDOW_S = 86_400
"""OpenAI knows one completion window, "24h"."""

Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class Part(msgspec.Struct, frozen=True):
    """How many requests came out one way, and the bytes of their results."""

    requests: int = 0
    size: int = 0


class Tally(msgspec.Struct, frozen=True):
    """The results that were stored up to the message `upto`."""

    completed: Part = Part()
    failed: Part = Part()
    upto: int = 0

    def part(self, outcome: Outcome) -> Part:
        return self.completed if outcome == "completed" else self.failed


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`endpoint` is the URL of all its requests, of which there are `total`. `salt` is that of `tenant`."""

    id: str
    tenant: str
    salt: bytes
    endpoint: str
    input_file: str
    total: int
    created_at: int
    expires_at: int
    metadata: Metadata | None = None
    status: Status = "validating"
    ends_as: Final = "completed"
    error: str | None = None
    tally: Tally = Tally()
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def runs(self) -> bool:
        """Whether its items are to be worked on."""
        return self.status in ("validating", "in_progress")

    @property
    def frozen(self) -> bool:
        """Whether what it came to is known."""
        return self.status in ("finalizing", "completed", "expired", "cancelled", "failed")

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done for it."""
        return self.frozen and self.status != "finalizing"

    def begun(self, now: int) -> "Batch":
        """All items are in the queue."""
        return replace(self, status="in_progress", in_progress_at=now)

    def broken(self, error: str, now: int) -> "Batch":
        """It cannot begin."""
        return replace(self, status="failed", error=error, failed_at=now)

    def cancelling(self, now: int) -> "Batch":
        """Raises `InvalidRequest` when it is too late for that."""
        if self.frozen and self.ends_as != "cancelled":
            raise InvalidRequest(f"A batch that is {self.status} cannot be cancelled", param="batch_id")
        return replace(self, status="cancelling", cancelling_at=now) if self.runs else self

    def closing(self, ends_as: Final, tally: Tally, now: int) -> "Batch":
        return replace(self, status="finalizing", ends_as=ends_as, tally=tally, finalizing_at=now)

    def ended(self, now: int) -> "Batch":
        """Once its output files are there."""
        ended: dict[str, Any] = {"status": self.ends_as, f"{self.ends_as}_at": now}
        return replace(self, **ended)

    def output_id(self, outcome: Outcome) -> str | None:
        """The file with the requests that came out so, if there were any."""
        if not self.frozen or not self.tally.part(outcome).requests:
            return None
        kind = "output" if outcome == "completed" else "error"
        return f"file-{self.id.removeprefix('batch_')}-{kind}"


def batch_view(batch: Batch, tally: Tally) -> dict[str, Any]:
    """The batch in OpenAI's shape, with the results that there are now. Files are named once they are there."""
    status = "cancelling" if batch.status == "finalizing" and batch.ends_as == "cancelled" else batch.status
    errors = {
        "object": "list",
        "data": [
            {"code": "invalid_file", "message": batch.error, "param": "input_file_id", "line": None},
        ],
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": errors if batch.error else None,
        "input_file_id": batch.input_file,
        "completion_window": "24h",
        "status": status,
        "output_file_id": batch.output_id("completed") if batch.over else None,
        "error_file_id": batch.output_id("failed") if batch.over else None,
        "created_at": batch.created_at,
        "in_progress_at": batch.in_progress_at,
        "expires_at": batch.expires_at,
        "finalizing_at": batch.finalizing_at,
        "completed_at": batch.completed_at,
        "failed_at": batch.failed_at,
        "expired_at": batch.expired_at,
        "cancelling_at": batch.cancelling_at,
        "cancelled_at": batch.cancelled_at,
        "request_counts": {
            "total": batch.total,
            "completed": tally.completed.requests,
            "failed": tally.failed.requests,
        },
        "metadata": batch.metadata,
    }

"""Names a new life of a worker."""

import os
import re
import secrets
import socket
import time

from paceline.bus.identity import Identity
from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Role

__all__ = ["Identity", "new_identity"]

# One token of a NATS subject, and part of a file name.
_WORKER = re.compile(r"[A-Za-z0-9_-]{1,48}")


def new_identity(role: Role, worker: str | None) -> Identity:
    """A fresh incarnation of `worker`, or of a worker with a random id that names its role.

    Raises `InvalidRequest` for an id that cannot be part of a subject.
    """
    if worker is not None and not _WORKER.fullmatch(worker):
        raise InvalidRequest(
            f"worker id {worker!r} is not 1 to 48 of A-Z a-z 0-9 _ -", param="PACELINE_WORKER"
        )
    return Identity(
        role=role,
        worker=worker or f"{role}-{secrets.token_hex(4)}",
        incarnation=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=time.time(),
    )

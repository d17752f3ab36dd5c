"""Who answers: one life of one worker."""

from dataclasses import dataclass

from paceline.contracts.messages import Role


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of a worker. A restart keeps `worker` and changes `incarnation`; `started` is in UNIX seconds."""

    role: Role
    worker: str
    incarnation: str
    host: str
    pid: int
    started: float

"""What `run` asks of a service."""

from typing import Protocol

from paceline.contracts.messages import Load, ModelInfo


class Service(Protocol):
    """One worker's work. Its life:

    1. The constructor takes a `Context` and adds its endpoints to `context.api`; it does no I/O.
    2. `start` makes it ready. Requests may arrive while it runs.
    3. `load` and `model` are asked twice a second, from the constructor on; they must not block.
    4. `drain` refuses new work with `Unavailable` from its first moment and returns when the last piece of running
       work has ended. Endpoints still answer: running work is cancelled, committed, resent through them. It is
       cancelled when it takes too long.
    5. `close` frees everything, whether `start` ended or not and `drain` ended or not.
    """

    async def start(self) -> None: ...

    def load(self) -> Load: ...

    def model(self) -> ModelInfo | None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...

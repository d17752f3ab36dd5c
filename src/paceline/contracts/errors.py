"""Errors that cross a service boundary.

    PacelineError
    ├── InvalidRequest      the caller's fault; never retried                      (HTTP 400)
    │   └── ContextTooLong  the prompt can never fit the model or the page pool    (HTTP 400)
    ├── ModelNotFound       no worker serves that model                            (HTTP 404)
    ├── Busy                a bounded queue is full; carries when to come back     (HTTP 429)
    ├── Unavailable         no worker, or the worker is draining; try another      (HTTP 503)
    ├── WorkerLost          a worker died or forgot the request; try another       (HTTP 502)
    ├── Cancelled           the caller went away                                   (not sent)
    ├── IntegrityError      a page held bytes that are not this request's; the attempt ends   (HTTP 500)
    ├── ProtocolError       bytes that are not a message of this version           (HTTP 500)
    └── InternalError       a fault of ours                                        (HTTP 500)

Each class has one wire `code`; `from_code` turns it back. `retryable` says whether another attempt on
another worker may succeed, which is the only thing that the gateway decides from.
"""

from typing import ClassVar


class PacelineError(Exception):
    """Base of every error that has a wire code."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(PacelineError):
    """The request is malformed; `param` names the offending field when there is one."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """The prompt and its shortest answer exceed the model's context or the worker's whole page pool."""

    code = "context_length_exceeded"


class ModelNotFound(PacelineError):
    """No worker of the mesh serves the model that was asked for."""

    code = "model_not_found"


class Busy(PacelineError):
    """A bounded queue is full. `retry_after_s` estimates when it will have drained."""

    code = "busy"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(PacelineError):
    """Nobody takes this work now: no worker of the role, or it is draining."""

    code = "unavailable"
    retryable = True


class WorkerLost(PacelineError):
    """The worker that held the request died, or came back without it."""

    code = "worker_lost"
    retryable = True


class Cancelled(PacelineError):
    """The caller went away or asked for the end; nobody waits for an answer."""

    code = "cancelled"


class IntegrityError(PacelineError):
    """A page's tag or digest is not the one that the sequence recorded."""

    code = "integrity"
    retryable = True


class ProtocolError(PacelineError):
    """Bytes that do not decode as a message of a known version."""

    code = "protocol"


class InternalError(PacelineError):
    """A fault of ours; the details are in the log of the worker that raised it."""

    code = "internal"
    retryable = True


_BY_CODE: dict[str, type[PacelineError]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        ContextTooLong,
        ModelNotFound,
        Busy,
        Unavailable,
        WorkerLost,
        Cancelled,
        IntegrityError,
        ProtocolError,
        InternalError,
    )
}


def from_code(code: str, message: str) -> PacelineError:
    """The error that `code` names, or `InternalError` for a code that this version does not know."""
    return _BY_CODE.get(code, InternalError)(message)

"""Work in a process of its own, which is replaced when it hangs, dies, or has made its GPU unusable for itself."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class FailedError(Exception):
    """What the process says of an error."""


class Process:
    """Calls functions one after the other. Functions, arguments and results are pickled."""

    def __init__(self) -> None:
        self._context = get_context("spawn")
        self._connection: Connection[Any, Any] | None = None

    def call(self, function: Callable[..., T], *args: object, timeout: float) -> T:
        """Raises `FailedError`: the function raised, or did not return within `timeout` seconds."""
        connection = self._connection or self._start()
        try:
            connection.send((function, args))
            if not connection.poll(timeout):
                raise FailedError(f"no result within {timeout:.0f} s")
            usable, error, result = connection.recv()
        except (FailedError, EOFError, OSError) as lost:
            self.close()
            raise FailedError(str(lost) or "the process died") from None
        if not usable:
            self.close()
        if error is not None:
            raise FailedError(error)
        found: T = result
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._connection = None

    def _start(self) -> "Connection[Any, Any]":
        self._connection, other = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        return self._connection


def _serve(connection: "Connection[Any, Any]") -> None:
    while True:
        function, args = connection.recv()
        try:
            with torch.inference_mode():
                connection.send((True, None, function(*args)))
        except Exception as error:
            connection.send((_usable(), f"{type(error).__name__}: {error}", None))


def _usable() -> bool:
    """Whether the GPU still works: after an invalid access nothing does in this process."""
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True

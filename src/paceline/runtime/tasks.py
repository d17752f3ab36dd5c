"""Keeps hold of running tasks."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Tasks:
    """The tasks of one owner: none is lost to the garbage collector, and no exception to silence."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `coro`. If it raises, the exception is logged under `name`."""
        task = asyncio.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def __len__(self) -> int:
        """How many still run."""
        return len(self._tasks)

    async def cancel_all(self) -> None:
        """Cancel every task, also those that cancelled ones spawn, and wait until all have ended."""
        while others := self._tasks - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("task_failed", task=task.get_name(), exc_info=error)

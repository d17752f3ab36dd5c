"""The decode side of handoffs: room for a prompt's pages, their verification, and what happens to them on the way out.

A page that a prefill worker may still write is not free, even when nobody wants its content any more: it is quarantined
until that worker says that it has stopped, or is known to be gone.
"""

import asyncio
from dataclasses import dataclass

import structlog

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import IntegrityError, PacelineError
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.contracts.messages import Admit, Commit, PageRef, RemotePrefill, Withdraw
from paceline.engine.holdings import places_behind
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence, State
from paceline.runtime.context import Context
from paceline.worker.attempts import Attempt
from paceline.worker.host import EngineHost
from paceline.worker.loans import digest

log = structlog.get_logger(__name__)

WITHDRAW_RETRY_S = 0.5


@dataclass(slots=True, eq=False)
class Handoff:
    """One transfer. `refs` are the pages that the prefill worker may write, once it was told of them, until
    `writer_stopped`."""

    attempt: Attempt
    source: RemotePrefill
    refs: list[PageRef] | None = None
    writer_stopped: bool = False
    commit: "asyncio.Task[PacelineError | None] | None" = None


class Handoffs:
    """All transfers towards this worker."""

    def __init__(self, context: Context, host: EngineHost) -> None:
        self._context = context
        self._host = host
        self._transfers: dict[str, Handoff] = {}
        self._ending: dict[str, Handoff] = {}
        self._gone = asyncio.Event()

    def __len__(self) -> int:
        return len(self._transfers) + len(self._ending)

    def add(self, attempt: Attempt, source: RemotePrefill) -> None:
        self._transfers[source.transfer_id] = Handoff(attempt, source)

    def of(self, attempt: Attempt) -> Handoff | None:
        return next((h for h in self._transfers.values() if h.attempt is attempt), None)

    def get(self, transfer_id: str) -> Handoff | None:
        return self._transfers.get(transfer_id)

    def from_worker(self, worker: str) -> list[Handoff]:
        return [h for h in self._transfers.values() if h.source.worker == worker]

    async def admit(self, handoff: Handoff) -> None:
        """Tell the prefill worker which pages to fill. The sequence is FILLING. Raises `PacelineError`."""
        sequence = handoff.attempt.sequence
        resident = sequence.computed // PAGE_TOKENS
        handoff.refs = sequence.holdings.refs(
            places_behind(self._host.groups, resident, len(sequence.tokens))
        )
        message = Admit(
            transfer_id=handoff.source.transfer_id,
            worker=self._context.identity.worker,
            resident=resident,
            pages=handoff.refs,
            kv=self._host.kv_form(),
            transfer=self._host.transport.params,
        )
        await rpc.insist(self._context.bus, subjects.ADMIT, "prefill", handoff.source.worker, message)

    async def commit(self, handoff: Handoff, message: Commit) -> None:
        """Verify the pages and let the sequence run, unless its first token ended it.

        Raises `IntegrityError` for other pages than were admitted, for pages that changed hands, and for bytes that are
        not those that were sent.
        """
        # From its commit on the prefill worker writes no more.
        handoff.writer_stopped = True
        sequence = handoff.attempt.sequence
        if message.pages != handoff.refs or message.tokens != len(sequence.tokens):
            raise IntegrityError(
                f"transfer {message.transfer_id} was committed for other pages than were admitted"
            )
        if message.finish_reason is not None:
            return  # The prefill worker ended the request, and nobody reads these pages.
        await asyncio.to_thread(self._compare, message.pages, message.digests)
        await self._host.thread.call(lambda scheduler: self._join(scheduler, sequence, message))
        self._transfers.pop(message.transfer_id, None)

    def _join(self, scheduler: Scheduler, sequence: Sequence, message: Commit) -> None:
        scheduler.join(sequence, message.first_token)
        # Only now it is certain that the pages are still the sequence's, and no step runs before this returns.
        self._host.import_pages([ref.page for ref in message.pages])

    async def end(self, handoff: Handoff) -> None:
        """Free the pages of a transfer that nobody wants any more, as soon as nobody can write to them."""
        transfer_id = handoff.source.transfer_id
        self._ending[transfer_id] = handoff
        self._transfers.pop(transfer_id, None)
        sequence = handoff.attempt.sequence
        try:
            if handoff.refs is None or handoff.writer_stopped:
                await self._host.thread.call(lambda scheduler: scheduler.abort(sequence))
                return
            pages = await self._host.thread.call(lambda scheduler: _isolate(scheduler, sequence))
            await self._until_writer_stopped(handoff.source)
            await self._host.thread.call(lambda scheduler: scheduler.pool.end_quarantine(pages))
        finally:
            del self._ending[transfer_id]

    def writer_gone(self) -> None:
        """A prefill process ended: whoever waits for one looks again."""
        self._gone.set()
        self._gone.clear()

    async def _until_writer_stopped(self, source: RemotePrefill) -> None:
        message = Withdraw(transfer_id=source.transfer_id, code="cancelled", message="the request is over")
        while True:
            try:
                await rpc.call(self._context.bus, subjects.WITHDRAW, "prefill", source.worker, message)
            except PacelineError as error:
                log.info("withdraw_unheard", peer=source.worker, error=error.message)
            else:
                return
            # Tags were changed before this look, so that a worker without the arena cannot write to these pages even
            # if it maps the arena now.
            if not self._host.transport.has_peer(source.worker):
                return
            try:
                async with asyncio.timeout(WITHDRAW_RETRY_S):
                    await self._gone.wait()
            except TimeoutError:
                continue

    def _compare(self, refs: list[PageRef], digests: list[bytes]) -> None:
        for ref, expected in zip(refs, digests, strict=True):
            if digest(self._host.arena.pages[ref.page].data) != expected:
                raise IntegrityError(f"page {ref.page} does not hold the bytes that were sent")


def _isolate(scheduler: Scheduler, sequence: Sequence) -> list[int]:
    """Quarantine the pages if they are still being filled; the pages that are quarantined."""
    if sequence.state is State.FILLING:
        return scheduler.quarantine(sequence)
    scheduler.abort(sequence)
    return []

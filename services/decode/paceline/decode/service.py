"""The decode worker: generates tokens for many sequences at once, after a handoff or after a prompt of its own."""

import asyncio
import time

import structlog

from paceline.contracts import subjects
from paceline.contracts.errors import Cancelled, IntegrityError, PacelineError, WorkerLost, from_code
from paceline.contracts.messages import Ack, Beacon, Commit, Generate, RemotePrefill, Withdraw
from paceline.decode.drafting import Drafting
from paceline.decode.handoff import Handoff, Handoffs
from paceline.decode.settings import Settings
from paceline.engine.plan import Advance
from paceline.runtime.context import Context
from paceline.worker.attempts import Attempt
from paceline.worker.service import WorkerService

log = structlog.get_logger(__name__)


class DecodeService(WorkerService):
    """An attempt holds its sequence, its handoff until that is committed, and its place at the drafter."""

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context, settings)
        self._handoffs = Handoffs(context, self.host)
        self._drafting = Drafting(context, self.host) if settings.draft else None
        context.api.serve(subjects.GENERATE, self._generate)
        context.api.serve(subjects.COMMIT, self._commit)
        context.api.serve(subjects.WITHDRAW, self._withdraw)

    async def start(self) -> None:
        await super().start()
        self.host.transport.on_peer_lost(self._writer_lost)
        if self._drafting is not None:
            self._drafting.start(self.context.tasks)

    def leases(self) -> int:
        drafting = len(self._drafting) if self._drafting is not None else 0
        return super().leases() + len(self._handoffs) + drafting

    def filling(self, attempt: Attempt) -> None:
        handoff = self._handoffs.of(attempt)
        if handoff is not None:
            self.requests.spawn(self._admit(handoff), name="admit")

    def advanced(self, attempt: Attempt, advance: Advance) -> None:
        if self._drafting is not None and advance.tokens:
            self._drafting.extend(attempt.sequence, advance.tokens)
        if advance.finish_reason is not None:
            self.done(attempt, advance)
            self.release(attempt)

    def release(self, attempt: Attempt) -> None:
        self.settle(attempt)
        if self._drafting is not None:
            self._drafting.close(attempt.sequence)
        handoff = self._handoffs.of(attempt)
        if handoff is not None:
            self.requests.spawn(self._handoffs.end(handoff), name="end handoff")
        else:
            self.host.thread.call(lambda scheduler: scheduler.abort(attempt.sequence))

    def worker_lost(self, beacon: Beacon) -> None:
        if beacon.role == "drafter" and self._drafting is not None:
            self._drafting.drafter_lost(beacon.worker)
        if beacon.role == "prefill":
            lost = [
                h
                for h in self._handoffs.from_worker(beacon.worker)
                if h.source.incarnation == beacon.incarnation
            ]
            self._lose(lost)

    def _writer_lost(self, worker: str) -> None:
        """A process that had the arena mapped is gone, which is known at once and before its beacons are missed."""
        self._handoffs.writer_gone()
        self._lose([h for h in self._handoffs.from_worker(worker) if h.refs is not None])

    def _lose(self, handoffs: list[Handoff]) -> None:
        for handoff in handoffs:
            self.fail(handoff.attempt, WorkerLost(f"prefill worker {handoff.source.worker} is gone"))

    async def _generate(self, message: Generate) -> Ack:
        if self.is_repeat(message.work):
            return Ack()
        remote = isinstance(message.source, RemotePrefill)
        sequence = self.host.new_sequence(message.work, remote=remote)
        attempt = self.take(message.work, sequence, runs_prompt=not remote)
        if self._drafting is not None and message.draft:
            self._drafting.open(attempt)
        if isinstance(message.source, RemotePrefill):
            self._handoffs.add(attempt, message.source)
            self.requests.spawn(self.queue(attempt), name="queue")
        else:
            self.requests.spawn(self.run_prompt(attempt), name="prompt")
        return Ack()

    async def _admit(self, handoff: Handoff) -> None:
        try:
            await self._handoffs.admit(handoff)
        except Cancelled:
            # The prefill worker gave the transfer up, or came back without it.
            self.fail(
                handoff.attempt, WorkerLost(f"{handoff.source.worker} does not know the transfer any more")
            )
        except PacelineError as error:
            self.fail(handoff.attempt, error)

    async def _commit(self, message: Commit) -> Ack:
        handoff = self._handoffs.get(message.transfer_id)
        if handoff is None or handoff.refs is None:
            raise IntegrityError(f"transfer {message.transfer_id} is not being filled here")
        if handoff.commit is None:
            handoff.commit = self.requests.spawn(self._join(handoff, message), name="commit")
        # A commit that is sent twice is carried out once, and both get its answer.
        if error := await asyncio.shield(handoff.commit):
            raise error
        return Ack()

    async def _join(self, handoff: Handoff, message: Commit) -> PacelineError | None:
        """Why the pages were not taken, if they were not."""
        attempt = handoff.attempt
        if self._drafting is not None:
            # Before the sequence runs, so that its own tokens come after.
            self._drafting.extend(attempt.sequence, [message.first_token])
        try:
            await self._handoffs.commit(handoff, message)
        except PacelineError as error:
            self.fail(attempt, error)
            return error
        attempt.handoff_s = time.time() - message.sampled_at
        attempt.span.add_event("handoff", {"pages": len(message.pages)})
        if message.finish_reason is not None and attempt.live:  # the gateway may know of the end already
            self.release(attempt)
        return None

    async def _withdraw(self, message: Withdraw) -> Ack:
        handoff = self._handoffs.get(message.transfer_id)
        if handoff is not None:
            handoff.writer_stopped = True
            self.fail(handoff.attempt, from_code(message.code, message.message))
        return Ack()

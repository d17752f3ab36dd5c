"""The prefill worker: runs prompts, samples their first tokens, hands their pages over."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from paceline.contracts import subjects
from paceline.contracts.errors import Cancelled, InternalError, PacelineError
from paceline.contracts.messages import Ack, Admit, Beacon, Prefill, Withdraw
from paceline.engine.plan import Advance
from paceline.prefill.converters import Converters
from paceline.prefill.handoff import Handoff
from paceline.runtime.context import Context
from paceline.worker.attempts import Attempt
from paceline.worker.service import WorkerService
from paceline.worker.settings import WorkerSettings

EARLY_S = 0.5
"""How long an admission waits for the request that it belongs to."""


class PrefillService(WorkerService):
    """An attempt holds its sequence, whose pages outlive the first token until decode has them, and its handoff."""

    def __init__(self, context: Context, settings: WorkerSettings) -> None:
        super().__init__(context, settings)
        self._handoffs: dict[str, Handoff] = {}
        self._awaited: dict[str, asyncio.Future[Handoff]] = {}
        self._pushes: dict[Attempt, asyncio.Task[None]] = {}
        # One thread: copies of several handoffs would only compete for the same memory bandwidth.
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="push")
        self._converters = Converters()
        context.api.serve(subjects.PREFILL, self._prefill)
        context.api.serve(subjects.ADMIT, self._admit)
        context.api.serve(subjects.WITHDRAW, self._withdraw)

    def leases(self) -> int:
        return super().leases() + len(self._handoffs)

    async def close(self) -> None:
        await super().close()
        self._copier.shutdown(wait=True)

    def advanced(self, attempt: Attempt, advance: Advance) -> None:
        handoff = self._handoff_of(attempt)
        if handoff is None:
            return
        first_token = advance.tokens[0] if advance.tokens else None
        # The sequence always ends here; the request does only by a stop token or at its own limit.
        ended = first_token is not None and (
            advance.finish_reason == "stop" or len(attempt.sequence.tokens) >= self.host.limit(attempt.work)
        )
        if ended:
            self.done(attempt, advance)
        handoff.progress(advance.computed, first_token, advance.finish_reason if ended else None)

    def filling(self, attempt: Attempt) -> None:
        raise InternalError("a prefill worker admits no handoff")

    def release(self, attempt: Attempt) -> None:
        self.settle(attempt)
        self.requests.spawn(self._stop(attempt), name="stop")

    def worker_lost(self, beacon: Beacon) -> None:
        if beacon.role != "decode":
            return
        for handoff in [h for h in self._handoffs.values() if h.decode_worker == beacon.worker]:
            self.release(handoff.attempt)

    async def _prefill(self, message: Prefill) -> Ack:
        if self.is_repeat(message.work):
            return Ack()
        sequence = self.host.new_sequence(message.work, to_hand_over=True)
        attempt = self.take(message.work, sequence, runs_prompt=True)
        handoff = Handoff(
            self.context, self.host, self._copier, self._converters, attempt, message.transfer_id
        )
        self._handoffs[message.transfer_id] = handoff
        if awaited := self._awaited.pop(message.transfer_id, None):
            awaited.set_result(handoff)
        self.requests.spawn(self.run_prompt(attempt), name="prompt")
        self._pushes[attempt] = self.requests.spawn(self._hand_over(handoff), name="push")
        return Ack()

    async def _admit(self, message: Admit) -> Ack:
        handoff = self._handoffs.get(message.transfer_id) or await self._expected(message.transfer_id)
        handoff.admit(message)
        await self.host.thread.call(lambda scheduler: scheduler.expect(handoff.attempt.sequence))
        return Ack()

    async def _expected(self, transfer_id: str) -> Handoff:
        """A handoff whose request is still on its way here, which the decode worker's copy of it may overtake."""
        future = self._awaited.setdefault(transfer_id, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(EARLY_S):
                return await asyncio.shield(future)
        except TimeoutError:
            raise Cancelled(f"transfer {transfer_id} is not known here") from None
        finally:
            self._awaited.pop(transfer_id, None)

    async def _withdraw(self, message: Withdraw) -> Ack:
        handoff = self._handoffs.get(message.transfer_id)
        if handoff is not None:
            self.settle(handoff.attempt)
            await self._stop(handoff.attempt)
        return Ack()

    async def _hand_over(self, handoff: Handoff) -> None:
        try:
            await handoff.run()
        except PacelineError as error:
            if handoff.decode_worker is None:
                self.fail(handoff.attempt, error)
                return
            # Decode tells the gateway, so that the attempt ends once.
            await handoff.withdraw(error)
        self.release(handoff.attempt)

    async def _stop(self, attempt: Attempt) -> None:
        """Let the copy that runs end, then free the pages. Whoever calls may rely on no byte being written after."""
        push = self._pushes.pop(attempt, None)
        if push is not None:
            push.cancel()
            await asyncio.wait([push])
        handoff = self._handoff_of(attempt)
        if handoff is not None:
            await handoff.stop()
            self._handoffs.pop(handoff.transfer_id, None)
        await self.host.thread.call(lambda scheduler: scheduler.abort(attempt.sequence))

    def _handoff_of(self, attempt: Attempt) -> Handoff | None:
        return next((h for h in self._handoffs.values() if h.attempt is attempt), None)

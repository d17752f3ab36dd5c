"""Drafts from the drafter, without ever waiting for them.

Tokens that a step accepted are told to the drafter, one message for all sequences and one at a time; what it proposes
is offered to the scheduler whenever it arrives. A proposal that comes after its first tokens were decoded is still good
for the rest of them (`engine.drafts.advance`), so the latency of the drafter costs accepted tokens and no time.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import PacelineError
from paceline.contracts.messages import DraftClose, DraftCommit, Drafted, DraftOpen, Propose, TokenTree
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.runtime.context import Context
from paceline.runtime.tasks import Tasks
from paceline.worker.host import EngineHost

log = structlog.get_logger(__name__)

MAX_DRAFT = 8
DEADLINE_S = 0.25
"""A proposal that takes longer is for tokens of long ago."""


@dataclass(slots=True)
class _Drafting:
    sequence: Sequence
    tenant: str
    epoch: int
    tokens: list[int]  # prompt and output so far
    worker: str | None = None  # the drafter that knows the sequence
    told: int = 0  # tokens that it knows


class Drafting:
    """The sequences of this worker that want drafts."""

    def __init__(self, context: Context, host: EngineHost, tasks: Tasks) -> None:
        self._context = context
        self._host = host
        self._tasks = tasks
        self._sequences: dict[str, _Drafting] = {}
        self._epoch = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sequences)

    def start(self, tasks: Tasks) -> None:
        tasks.spawn(self._run(), name="drafting")

    def open(self, sequence: Sequence, tokens: list[int], tenant: str) -> None:
        """Draft for a sequence that begins to decode after `tokens`."""
        self._sequences[sequence.request_id] = _Drafting(sequence, tenant, 0, list(tokens))
        self._wake.set()

    def extend(self, sequence: Sequence, tokens: Iterable[int]) -> None:
        """More tokens were accepted."""
        drafting = self._sequences.get(sequence.request_id)
        if drafting is not None and drafting.sequence is sequence:
            drafting.tokens.extend(tokens)
            self._wake.set()

    def close(self, sequence: Sequence) -> None:
        """The sequence left. Its tokens stay in the drafter's index."""
        drafting = self._sequences.get(sequence.request_id)
        if drafting is None or drafting.sequence is not sequence:
            return
        del self._sequences[sequence.request_id]
        if drafting.worker is not None:
            self._tasks.spawn(self._close(drafting, drafting.worker), name="draft close")

    def drafter_lost(self, worker: str) -> None:
        """Open its sequences elsewhere, or there again once it is back."""
        for drafting in self._sequences.values():
            if drafting.worker == worker:
                drafting.worker = None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            drafter = next(
                (b.worker for b in self._context.roster.alive("drafter") if b.state == "ready"), None
            )
            if drafter is None:
                continue
            try:
                await self._open_new(drafter)
                await self._propose(drafter)
            except PacelineError as error:
                log.info("drafter_failed", drafter=drafter, error=error.message)
                self.drafter_lost(drafter)

    async def _open_new(self, drafter: str) -> None:
        for drafting in list(self._sequences.values()):
            if drafting.worker == drafter:
                continue
            self._epoch += 1
            drafting.epoch, drafting.worker, drafting.told = self._epoch, drafter, len(drafting.tokens)
            message = DraftOpen(
                worker=self._context.identity.worker,
                request_id=drafting.sequence.request_id,
                epoch=drafting.epoch,
                tenant=drafting.tenant,
                tokens=drafting.tokens,
            )
            proposals = await rpc.call(self._context.bus, subjects.DRAFT_OPEN, "drafter", drafter, message)
            self._offer(proposals.drafts)

    async def _propose(self, drafter: str) -> None:
        commits = []
        for drafting in self._sequences.values():
            if drafting.worker == drafter and len(drafting.tokens) > drafting.told:
                commits.append(_commit(drafting))
                drafting.told = len(drafting.tokens)
        if not commits:
            return
        message = Propose(
            worker=self._context.identity.worker,
            deadline=time.time() + DEADLINE_S,
            max_tokens=MAX_DRAFT,
            commits=commits,
        )
        proposals = await rpc.call(
            self._context.bus, subjects.DRAFT_PROPOSE, "drafter", drafter, message, timeout=DEADLINE_S
        )
        self._offer(proposals.drafts)

    async def _close(self, drafting: _Drafting, drafter: str) -> None:
        message = DraftClose(
            worker=self._context.identity.worker,
            request_id=drafting.sequence.request_id,
            epoch=drafting.epoch,
        )
        try:
            await rpc.call(self._context.bus, subjects.DRAFT_CLOSE, "drafter", drafter, message)
        except PacelineError as error:
            log.info("draft_close_unheard", drafter=drafter, error=error.message)

    def _offer(self, drafts: list[Drafted]) -> None:
        for draft in drafts:
            drafting = self._sequences.get(draft.request_id)
            if drafting is None or drafting.epoch != draft.epoch or not isinstance(draft.proposal, TokenTree):
                continue
            self._host.thread.call(partial(_offer, drafting.sequence, draft.base, draft.proposal))


def _offer(sequence: Sequence, base: int, tree: TokenTree, scheduler: Scheduler) -> None:
    scheduler.offer(sequence, base, tree)


def _commit(drafting: _Drafting) -> DraftCommit:
    return DraftCommit(
        request_id=drafting.sequence.request_id,
        epoch=drafting.epoch,
        base=drafting.told,
        tokens=drafting.tokens[drafting.told :],
    )

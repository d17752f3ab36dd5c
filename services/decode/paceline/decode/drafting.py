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
from opentelemetry import trace
from opentelemetry.trace import Span

from paceline.bus import rpc
from paceline.contracts import subjects
from paceline.contracts.errors import PacelineError
from paceline.contracts.messages import DraftClose, DraftCommit, Drafted, DraftOpen, Propose, TokenTree
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from paceline.runtime.context import Context
from paceline.runtime.tasks import Tasks
from paceline.worker.attempts import Attempt
from paceline.worker.host import EngineHost

log = structlog.get_logger(__name__)

MAX_DRAFT = 8
DEADLINE_S = 0.25
"""A proposal that takes longer is for tokens of long ago."""

RETRY_S = 0.5
"""How long a drafter that failed is left alone."""


@dataclass(slots=True)
class _Drafting:
    sequence: Sequence
    tenant: str
    span: Span  # of the request, which the drafter's part belongs to
    epoch: int
    tokens: list[int]  # prompt and output so far
    worker: str | None = None  # the drafter that may know the sequence, and has to be told of its end
    told: int | None = None  # tokens that it knows; None = it has to be opened (again)


class Drafting:
    """The sequences of this worker that want drafts. One conversation with one drafter, so that it hears in order."""

    def __init__(self, context: Context, host: EngineHost) -> None:
        self._context = context
        self._host = host
        self._sequences: dict[str, _Drafting] = {}
        self._ended: list[_Drafting] = []
        self._epoch = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sequences) + len(self._ended)

    def start(self, tasks: Tasks) -> None:
        tasks.spawn(self._run(), name="drafting")

    def open(self, attempt: Attempt) -> None:
        """Draft for a sequence that decodes soon."""
        sequence = attempt.sequence
        if earlier := self._sequences.get(sequence.request_id):
            self.close(earlier.sequence)
        self._sequences[sequence.request_id] = _Drafting(
            sequence, attempt.work.tenant, attempt.span, 0, list(sequence.tokens)
        )
        self._wake.set()

    def extend(self, sequence: Sequence, tokens: Iterable[int]) -> None:
        """More tokens were accepted."""
        if drafting := self._of(sequence):
            drafting.tokens.extend(tokens)
            self._wake.set()

    def close(self, sequence: Sequence) -> None:
        """The sequence left. Its tokens stay in the drafter's index."""
        if drafting := self._of(sequence):
            del self._sequences[sequence.request_id]
            if drafting.worker is not None:
                self._ended.append(drafting)
                self._wake.set()

    def drafter_lost(self, worker: str) -> None:
        """Open its sequences elsewhere, or there again once it is back."""
        self._ended = [d for d in self._ended if d.worker != worker]
        for drafting in self._sequences.values():
            if drafting.worker == worker:
                drafting.worker = drafting.told = None

    def _of(self, sequence: Sequence) -> _Drafting | None:
        drafting = self._sequences.get(sequence.request_id)
        return drafting if drafting is not None and drafting.sequence is sequence else None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            drafter = next(
                (b.worker for b in self._context.roster.alive("drafter") if b.state == "ready"), None
            )
            try:
                await self._close_ended()
                if drafter is not None:
                    await self._open_new(drafter)
                    await self._propose(drafter)
            except PacelineError as error:
                log.info("drafter_failed", drafter=drafter, error=error.message)
            except Exception:
                # Requests go on without drafts.
                log.exception("drafting_crashed", drafter=drafter)
            else:
                continue
            for drafting in self._sequences.values():
                drafting.told = None
            await asyncio.sleep(RETRY_S)
            self._wake.set()

    async def _close_ended(self) -> None:
        while self._ended:
            drafting = self._ended[0]
            if drafting.worker is not None:
                message = DraftClose(
                    worker=self._context.identity.worker,
                    request_id=drafting.sequence.request_id,
                    epoch=drafting.epoch,
                )
                await rpc.call(self._context.bus, subjects.DRAFT_CLOSE, "drafter", drafting.worker, message)
            if drafting in self._ended:  # the drafter may have been lost meanwhile
                self._ended.remove(drafting)

    async def _open_new(self, drafter: str) -> None:
        for drafting in list(self._sequences.values()):
            ended = self._of(drafting.sequence) is not drafting  # while an earlier one was opened
            if ended or (drafting.worker == drafter and drafting.told is not None):
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
            with trace.use_span(drafting.span):
                proposals = await rpc.call(
                    self._context.bus, subjects.DRAFT_OPEN, "drafter", drafter, message
                )
            self._offer(proposals.drafts)

    async def _propose(self, drafter: str) -> None:
        commits = [
            _take_news(d) for d in self._sequences.values() if d.told is not None and len(d.tokens) > d.told
        ]
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
        bases = {commit.request_id: commit.base for commit in commits}
        for draft in proposals.drafts:
            drafting = self._sequences.get(draft.request_id)
            if (
                drafting is not None
                and draft.epoch == drafting.epoch
                and draft.base == bases.get(draft.request_id)
            ):
                # A base that did not advance: the drafter does not know the sequence up to there.
                drafting.told = None
                self._wake.set()
        self._offer(proposals.drafts)

    def _offer(self, drafts: list[Drafted]) -> None:
        for draft in drafts:
            drafting = self._sequences.get(draft.request_id)
            if drafting is None or drafting.epoch != draft.epoch or not isinstance(draft.proposal, TokenTree):
                continue
            self._host.thread.call(partial(_offer, drafting.sequence, draft.base, draft.proposal))


def _offer(sequence: Sequence, base: int, tree: TokenTree, scheduler: Scheduler) -> None:
    scheduler.offer(sequence, base, tree)


def _take_news(drafting: _Drafting) -> DraftCommit:
    """The tokens that the drafter does not know yet; from now on it does."""
    base = drafting.told or 0
    drafting.told = len(drafting.tokens)
    return DraftCommit(
        request_id=drafting.sequence.request_id,
        epoch=drafting.epoch,
        base=base,
        tokens=drafting.tokens[base:],
    )

"""Drafts for decode workers from what their tenants' requests said before. Decode verifies every token: a
wrong draft costs time, never text.
"""

import time
from collections import Counter

from paceline.contracts import messages as m
from paceline.contracts import subjects
from paceline.drafter.sequences import Sequences
from paceline.drafter.settings import Settings
from paceline.drafter.suffix import Corpora
from paceline.runtime.context import Context

OPENING_DRAFT = 8
"""Tokens of the proposal that answers an open, which asks for no number."""


class DrafterService:
    """Keeps a copy of the sequences that decode workers open, and proposes how they go on.

    No handler awaits, so that the messages of one worker take effect in the order in which they were sent.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context = context
        self._counters: Counter[str] = Counter()
        corpora = Corpora(tenants=settings.drafter_tenants, tenant_tokens=settings.drafter_tenant_tokens)
        self._sequences = Sequences(corpora, self._counters)
        context.api.serve(subjects.DRAFT_OPEN, self.open)
        context.api.serve(subjects.DRAFT_PROPOSE, self.propose)
        context.api.serve(subjects.DRAFT_CLOSE, self.close_sequence)
        context.roster.on_lost(self._worker_lost)

    async def start(self) -> None:
        """Nothing to do: the index begins empty."""

    def load(self) -> m.Load:
        return m.Load(
            leases=len(self._sequences), tasks=len(self._context.tasks), counters=dict(self._counters)
        )

    def model(self) -> m.ModelInfo | None:
        return None

    async def drain(self) -> None:
        """Nobody waits for a draft: decode goes on without, or opens its sequences elsewhere."""

    async def close(self) -> None:
        """Nothing is held but memory."""

    async def open(self, message: m.DraftOpen) -> m.Proposals:
        """Begin a sequence; answers with a first proposal for it."""
        self._sequences.open(message, time.monotonic())
        return m.Proposals(
            drafts=[self._sequences.propose(message.worker, message.request_id, OPENING_DRAFT)]
        )

    async def propose(self, message: m.Propose) -> m.Proposals:
        """Take every commit in, then answer one draft for each; none when that is too late by then.

        A commit that does not fit gets `NoDraft` at the base that the commit had, not behind its tokens: the
        sequence is unknown here until it is opened again.
        """
        drafts = []
        for commit in message.commits:
            known = self._sequences.commit(message.worker, commit, time.monotonic())
            if time.time() < message.deadline:
                drafts.append(
                    self._sequences.propose(message.worker, commit.request_id, message.max_tokens)
                    if known
                    else _nothing(commit)
                )
        return m.Proposals(drafts=drafts if time.time() < message.deadline else [])

    async def close_sequence(self, message: m.DraftClose) -> m.Ack:
        """End a sequence; one that is not there has ended."""
        self._sequences.close(message.worker, message.request_id, message.epoch)
        return m.Ack()

    def _worker_lost(self, beacon: m.Beacon) -> None:
        self._sequences.close_worker(beacon.worker)


def _nothing(commit: m.DraftCommit) -> m.Drafted:
    return m.Drafted(request_id=commit.request_id, epoch=commit.epoch, base=commit.base, proposal=m.NoDraft())

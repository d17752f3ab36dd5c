"""The sequences that decode workers have open, and whether what they say of them fits. Pure."""

from collections import Counter, OrderedDict
from dataclasses import dataclass

from paceline.contracts.messages import DraftCommit, Drafted, DraftOpen, DraftProposal, NoDraft, TokenTree
from paceline.drafter.suffix import Corpora, Document

IDLE_S = 600.0
"""Whoever says nothing about a sequence for this long has lost it."""


@dataclass(eq=False, slots=True)
class _Sequence:
    document: Document
    epoch: int
    length: int
    used: float


class Sequences:
    """Keyed by (worker, request id). Times are in seconds of any steady clock."""

    def __init__(self, corpora: Corpora, counters: Counter[str]) -> None:
        self._corpora = corpora
        self._counters = counters
        self._counters.update(dict.fromkeys(("opened", "proposed", "proposed_tokens", "committed"), 0))
        # The least recently used first.
        self._sequences: OrderedDict[tuple[str, str], _Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def open(self, message: DraftOpen, now: float) -> None:
        """Begin a sequence, in the place of an earlier epoch of the same. Raises `InvalidRequest` for ids
        beyond int32.
        """
        self._drop_idle(now)
        key = (message.worker, message.request_id)
        self._drop(key)
        document = self._corpora.open(message.tenant, message.tokens)
        self._sequences[key] = _Sequence(document, message.epoch, len(message.tokens), now)
        self._counters["opened"] += 1

    def commit(self, worker: str, commit: DraftCommit, now: float) -> bool:
        """Whether the tokens extend a known sequence. One that they do not fit is dropped, as what decode
        verified is the truth, unless they are of another epoch. Raises `InvalidRequest` for ids beyond
        int32.
        """
        key = (worker, commit.request_id)
        sequence = self._sequences.get(key)
        if sequence is None or sequence.epoch != commit.epoch:
            return False
        corpus = sequence.document.corpus
        if corpus is None or sequence.length != commit.base:
            self._drop(key)
            return False
        corpus.append(sequence.document, commit.tokens)
        sequence.length += len(commit.tokens)
        sequence.used = now
        self._sequences.move_to_end(key)
        self._counters["committed"] += len(commit.tokens)
        return True

    def propose(self, worker: str, request_id: str, max_tokens: int) -> Drafted:
        """What may follow the end of an open sequence."""
        sequence = self._sequences[worker, request_id]
        corpus = sequence.document.corpus
        tokens = corpus.propose(sequence.document, max_tokens) if corpus else []
        proposal: DraftProposal = NoDraft()
        if tokens:
            proposal = TokenTree(tokens=tokens, parents=list(range(-1, len(tokens) - 1)))
            self._counters["proposed"] += 1
            self._counters["proposed_tokens"] += len(tokens)
        return Drafted(request_id=request_id, epoch=sequence.epoch, base=sequence.length, proposal=proposal)

    def close(self, worker: str, request_id: str, epoch: int) -> None:
        """End a sequence, if it is in this epoch."""
        sequence = self._sequences.get((worker, request_id))
        if sequence is not None and sequence.epoch == epoch:
            self._drop((worker, request_id))

    def close_worker(self, worker: str) -> None:
        """End all sequences of a worker."""
        for key in [key for key in self._sequences if key[0] == worker]:
            self._drop(key)

    def _drop_idle(self, now: float) -> None:
        while self._sequences:
            key, oldest = next(iter(self._sequences.items()))
            if now - oldest.used < IDLE_S:
                break
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        """Its tokens stay in the tenant's corpus."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None and sequence.document.corpus is not None:
            sequence.document.corpus.close(sequence.document)

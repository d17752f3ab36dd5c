from collections import Counter

import pytest

from paceline.contracts.messages import DraftCommit, Drafted, DraftOpen, NoDraft, TokenTree
from paceline.drafter.sequences import IDLE_S, Sequences
from paceline.drafter.suffix import Corpora


@pytest.fixture
def sequences() -> Sequences:
    return Sequences(Corpora(tenants=4, tenant_tokens=1000), Counter())


def opening(
    tokens: list[int], *, worker: str = "d", request_id: str = "r", epoch: int = 1, tenant: str = "t"
) -> DraftOpen:
    return DraftOpen(worker=worker, request_id=request_id, epoch=epoch, tenant=tenant, tokens=tokens)


def commit(base: int, tokens: list[int], *, request_id: str = "r", epoch: int = 1) -> DraftCommit:
    return DraftCommit(request_id=request_id, epoch=epoch, base=base, tokens=tokens)


def test_a_proposal_is_a_chain_at_the_length_of_the_sequence(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3, 4, 5, 1, 2]), 0.0)
    assert sequences.commit("d", commit(7, [3]), 0.0)
    assert sequences.propose("d", "r", 8) == Drafted(
        request_id="r", epoch=1, base=8, proposal=TokenTree(tokens=[4, 5, 1], parents=[-1, 0, 1])
    )


def test_a_sequence_that_is_nothing_like_another_gets_no_draft(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3]), 0.0)
    assert sequences.propose("d", "r", 8) == Drafted(request_id="r", epoch=1, base=3, proposal=NoDraft())


def test_what_a_sequence_said_is_proposed_to_those_after_it(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3]), 0.0)
    sequences.commit("d", commit(3, [4, 5]), 0.0)
    sequences.close("d", "r", 1)
    sequences.open(opening([9, 2, 3, 4], worker="other"), 0.0)
    assert sequences.propose("other", "r", 8).proposal == TokenTree(tokens=[5], parents=[-1])


@pytest.mark.parametrize("base", [3, 5, 0])
def test_a_commit_with_another_base_drops_the_sequence(base: int, sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3, 4]), 0.0)
    assert not sequences.commit("d", commit(base, [5]), 0.0)
    assert len(sequences) == 0
    assert not sequences.commit("d", commit(4, [5]), 0.0)


def test_a_commit_of_another_epoch_changes_nothing(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3], epoch=2), 0.0)
    assert not sequences.commit("d", commit(3, [4], epoch=1), 0.0)
    sequences.close("d", "r", 1)
    assert sequences.commit("d", commit(3, [4], epoch=2), 0.0)


def test_a_later_epoch_takes_the_place_of_an_earlier(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3]), 0.0)
    sequences.open(opening([1, 2], epoch=2), 0.0)
    assert len(sequences) == 1
    assert not sequences.commit("d", commit(3, [4], epoch=1), 0.0)
    assert sequences.commit("d", commit(2, [3], epoch=2), 0.0)


def test_one_request_on_two_workers_is_two_sequences(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3], worker="a"), 0.0)
    sequences.open(opening([1, 2], worker="b"), 0.0)
    assert sequences.commit("a", commit(3, [4]), 0.0)
    assert sequences.commit("b", commit(2, [3]), 0.0)
    sequences.close_worker("a")
    assert not sequences.commit("a", commit(4, [5]), 0.0)
    assert sequences.commit("b", commit(3, [4]), 0.0)


def test_a_sequence_whose_tokens_were_forgotten_is_dropped() -> None:
    sequences = Sequences(Corpora(tenants=1, tenant_tokens=100), Counter())
    sequences.open(opening([1, 2, 3]), 0.0)
    sequences.open(opening([1, 2, 3], request_id="s", tenant="other"), 0.0)
    assert sequences.propose("d", "r", 8).proposal == NoDraft()
    assert not sequences.commit("d", commit(3, [4]), 0.0)
    assert len(sequences) == 1


def test_sequences_that_nobody_closed_are_dropped_when_idle(sequences: Sequences) -> None:
    sequences.open(opening([1, 2, 3], request_id="lost"), 0.0)
    sequences.open(opening([1, 2, 3], request_id="kept"), 0.0)
    sequences.commit("d", commit(3, [4], request_id="kept"), IDLE_S - 1)
    sequences.open(opening([1, 2, 3], request_id="new"), IDLE_S)
    assert len(sequences) == 2
    assert not sequences.commit("d", commit(3, [4], request_id="lost"), IDLE_S)
    assert sequences.commit("d", commit(4, [5], request_id="kept"), IDLE_S)

"""Masks of a step by exact values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.messages import TokenTree
from paceline.engine.masks import Constrained, Masking, allowed
from tests.unit.engine.scripted import Sentences

VOCAB = 70


def tokens(mask: np.ndarray[tuple[int], np.dtype[np.int32]]) -> list[int]:
    return np.flatnonzero(allowed(mask, VOCAB)).tolist()


def test_a_row_without_a_constraint_costs_nothing() -> None:
    assert Masking(VOCAB).of([]) is None


def test_rows_of_several_sequences() -> None:
    a, b = Sentences((0, 1), (31, 1), (69, 1)), Sentences((32,))
    masks = Masking(VOCAB).of([Constrained(a, 0, None), Constrained(b, 4, None)])
    assert masks is not None
    assert masks.bits.shape == (2, 3)
    assert masks.rows == [0, 4]
    assert [tokens(mask) for mask in masks.bits] == [[0, 31, 69], [32]]


def test_each_draft_is_masked_by_what_comes_before_it() -> None:
    constraint = Sentences((1, 2, 3), (1, 2, 4), (1, 5), (6, 7))
    #  7 is forbidden at the root, and so is all that follows it; behind (1, 5) the output has ended.
    tree = TokenTree(tokens=[1, 7, 2, 6, 5, 8, 3, 9], parents=[-1, -1, 0, -1, 0, 1, 2, 4])
    masks = Masking(VOCAB).of([Constrained(constraint, 10, tree)])
    assert masks is not None
    found = dict(zip(masks.rows, map(tokens, masks.bits), strict=True))
    assert found == {10: [1, 6], 11: [2, 5], 13: [3, 4], 14: [7]}
    assert constraint.taken == ()


def test_masks_of_the_same_rows_are_the_same_object_with_other_bits() -> None:
    masking, constraint = Masking(VOCAB), Sentences((1, 2), (3, 4))
    constrained = [Constrained(constraint, 3, None)]
    first = masking.of(constrained)
    assert first is not None
    assert tokens(first.bits[0]) == [1, 3]
    constraint.take(3)
    assert masking.of(constrained) is first
    assert tokens(first.bits[0]) == [4]
    other = masking.of([Constrained(constraint, 2, None)])
    assert other is not first
    more = masking.of([Constrained(constraint, 0, None), Constrained(constraint, 1, None)])
    assert more is not None
    assert more.rows == [0, 1]
    assert len(first.bits) == 1


@given(st.sets(st.integers(0, 99)), st.integers(1, 100))
def test_bits_are_tokens(bits: set[int], vocab: int) -> None:
    mask = np.zeros(4, dtype=np.int32)
    Sentences(*[(i,) for i in bits]).fill(mask)
    assert allowed(mask, vocab).tolist() == [i in bits for i in range(vocab)]


@pytest.mark.parametrize("taken", [(), (1,), (1, 2)])
def test_the_scripted_grammar_is_one(taken: tuple[int, ...]) -> None:
    constraint = Sentences((1, 2, 3), (1, 2, 4))
    for token in taken:
        assert constraint.take(token)
    assert constraint.forced() == [1, 2][len(taken) :]
    assert not constraint.take(9)

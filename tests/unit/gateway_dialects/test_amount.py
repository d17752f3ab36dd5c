"""Counting what a body holds before it is built."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects import amount
from paceline.gateway.dialects.amount import check_amount

LARGE = "x" * (64 << 10)


@pytest.mark.parametrize(
    ("unit", "most", "what"),
    [([], 32_768 - 1, "lists and objects"), ("", 131_072 - 1, "strings"), (1, 524_288, "values")],
)
def test_so_many_values_are_taken_and_no_more(unit: Any, most: int, what: str) -> None:
    check_amount(json.dumps([LARGE, *[unit] * most]).encode())
    with pytest.raises(InvalidRequest, match=what) as refused:
        check_amount(json.dumps([LARGE, *[unit] * (most + 1)]).encode(), "here")
    assert refused.value.param == "here"


def test_what_is_said_in_strings_does_not_count() -> None:
    check_amount(json.dumps(['[{"a": [1, 2]}, "\\\\"] ' * 100_000]).encode())


trees = st.recursive(
    st.text(alphabet='"\\[{,x') | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='"\\[{', max_size=3), inner),
)


def count(value: Any) -> tuple[int, int]:
    """(lists and objects, strings)"""
    if isinstance(value, str | int):
        return 0, int(isinstance(value, str))
    inner = [*map(count, value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return 1 + sum(c for c, _ in inner), keys + sum(s for _, s in inner)


@given(tree=trees, piece=st.integers(1, 9))
def test_every_cut_of_a_body_gives_the_same_count(tree: Any, piece: int) -> None:
    body = json.dumps(tree).encode()
    containers, strings = count(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amount, "_SMALL_BODY", 0)
        patch.setattr(amount, "_PIECE", piece)
        patch.setattr(amount, "_MOST_CONTAINERS", containers)
        patch.setattr(amount, "_MOST_STRINGS", strings)
        check_amount(body)
        for name, number in (("_MOST_CONTAINERS", containers), ("_MOST_STRINGS", strings)):
            if number:
                patch.setattr(amount, name, number - 1)
                with pytest.raises(InvalidRequest):
                    check_amount(body)
                patch.setattr(amount, name, number)

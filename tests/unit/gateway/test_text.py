"""Incremental detokenizing and stop strings."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.gateway.text import TextStream

BYTES = [bytes([b]) for b in range(256)] + [b"", b"DEF", b"G", b"HI", b"J", "é".encode(), "😀".encode()[:2]]


def run(
    tokens: Sequence[int], stops: Sequence[str], cuts: Sequence[int] = ()
) -> tuple[list[str], TextStream]:
    """The deltas of `tokens` pushed in groups that end at `cuts`."""
    stream = TextStream(BYTES.__getitem__, stops)
    deltas = []
    edges = [0, *sorted(cuts), len(tokens)]
    for start, end in itertools.pairwise(edges):
        if stream.stopped:
            break
        deltas.append(stream.push(tokens[start:end]))
    deltas.append(stream.finish())
    return deltas, stream


def text_tokens(text: str) -> list[int]:
    return list(text.encode())


def test_a_character_split_over_tokens_appears_whole() -> None:
    deltas, stream = run(text_tokens("a😀b"), (), cuts=range(1, 6))
    assert deltas == ["a", "", "", "", "😀", "b", ""]
    assert stream.tokens == 6


def test_an_unfinished_character_becomes_one_replacement_character() -> None:
    deltas, _ = run(list("x😀".encode()[:-1]), (), cuts=(1, 2, 3))
    assert deltas == ["x", "", "", "", "\ufffd"]


def test_text_goes_on_after_invalid_bytes() -> None:
    assert "".join(run([0xFF, 0x41, 0xC3, 0x42], ())[0]) == "\ufffdA\ufffdB"


def test_special_tokens_have_no_text() -> None:
    deltas, stream = run([0x41, 256, 0x42], ())
    assert ("".join(deltas), stream.tokens) == ("AB", 3)


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    tokens = [257, 258, 259, 260, 0x58]
    deltas, stream = run(tokens, ("DEFGHIJ",), cuts=(1, 2, 3, 4))
    assert deltas == ["", "", "", "", ""]
    assert (stream.stopped, stream.tokens) == (True, 4)


def test_text_held_for_a_stop_string_is_released_when_it_does_not_come() -> None:
    deltas, stream = run(text_tokens("a\nb\n"), ("\n\n",), cuts=(1, 2, 3))
    assert deltas == ["a", "", "\nb", "", "\n"]
    assert not stream.stopped


def test_the_token_that_completes_a_stop_string_is_counted_and_its_rest_dropped() -> None:
    deltas, stream = run([0x61, 257, 258], ("E",))
    assert ("".join(deltas), stream.tokens, stream.stopped) == ("aD", 2, True)


@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        (("bc", "abcd"), "xa"),  # "bc" is complete first
        (("abcd", "cd"), "x"),  # both end at d: the longer one
        (("aab",), "xabcda"),  # needs the fallback of the automaton
        (("q",), "xabcdaaab!"),
    ],
)
def test_the_first_completed_stop_string_cuts_the_text(stops: tuple[str, ...], shown: str) -> None:
    assert "".join(run(text_tokens("xabcdaaab!"), stops)[0]) == shown


def test_a_stop_string_may_be_completed_by_the_replacement_character() -> None:
    deltas, stream = run([0x61, 0xC3], ("\ufffd",))
    assert ("".join(deltas), stream.stopped) == ("a", True)


def reference(tokens: Sequence[int], stops: Sequence[str]) -> str:
    """The whole text at once, cut where the earliest-ending (then longest) stop string begins."""
    text = b"".join(BYTES[t] for t in tokens).decode("utf-8", "replace")
    found = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    return text[: min(found)[1]] if found else text


@given(
    tokens=st.lists(
        st.one_of(st.sampled_from(range(256, len(BYTES))), st.sampled_from([97, 98, 195, 169, 240, 159]))
    ),
    stops=st.lists(st.text("abé\ufffdDEF", min_size=1, max_size=4), max_size=4),
    data=st.data(),
)
def test_any_grouping_of_tokens_gives_the_same_text(
    tokens: list[int], stops: list[str], data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(tokens))))
    deltas, stream = run(tokens, stops, cuts)
    whole, at_once = run(tokens, stops)
    assert "".join(deltas) == "".join(whole) == reference(tokens, stops)
    assert (stream.tokens, stream.stopped) == (at_once.tokens, at_once.stopped)


@given(text=st.text("abc", max_size=30), stop=st.text("abc", min_size=1, max_size=5))
def test_no_more_is_held_back_than_can_become_a_stop_string(text: str, stop: str) -> None:
    stream = TextStream(BYTES.__getitem__, (stop,))
    shown = "".join(stream.push(text_tokens(c)) for c in text)
    if stream.stopped:
        return
    held = text[len(shown) :]
    assert shown + held == text
    suffixes = [text[i:] for i in range(len(text)) if stop.startswith(text[i:])]
    assert held == max(suffixes, key=len, default="")

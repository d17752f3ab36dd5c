"""The client's half of server-sent events."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from paceline.cli.sse import SseParser

STREAM = 'data: {"a": "é"}\n\n: comment\n\nevent: x\r\ndata: one\r\ndata:two\r\n\r\ndata\n\ndata: [DONE]\n\n'.encode()
EVENTS = ['{"a": "é"}', "one\ntwo", "", "[DONE]"]


def test_events_of_a_whole_stream() -> None:
    assert SseParser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    parser = SseParser()
    bounds = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in itertools.pairwise(bounds)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS


def test_an_unfinished_event_is_not_delivered() -> None:
    assert SseParser().feed(b"data: half\n") == []

"""Answers as the client of the benchmarks reads them, and the rate of streams."""

import json

import pytest

from bench.load import Exchange, Sample, decode_rate, read
from paceline.gateway.sse import DONE

USAGE = {
    "prompt_tokens": 128,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 64},
    "paceline": {"stages": {"queue": 0.5}},
}


def event(content: str = "", **fields: object) -> bytes:
    body = {"choices": [{"delta": {"content": content}}], **fields}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKS = [
    event(),  # the role
    event("a"),
    b": keep-alive\n\n",
    event("b") + event("c"),
    event("d\r\n"),
    event(usage=USAGE, choices=[]) + DONE,
]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = HEAD + b"".join(map(chunk, CHUNKS)) + chunk(b"")


def exchange(*pieces: bytes) -> Exchange:
    """One that began at 10 and got a piece every second."""
    made = Exchange(b"")
    made.began = 10.0
    made.pieces = [(11.0 + i, piece) for i, piece in enumerate(pieces)]
    return made


async def test_each_text_has_the_time_at_which_its_chunk_was_whole() -> None:
    sample = read(exchange(HEAD, *map(chunk, CHUNKS), chunk(b"")))
    assert sample == Sample(10.0, [13.0, 15.0, 15.0, 16.0], 64, 128, 5, {"queue": 0.5})
    assert (sample.ttft, sample.gaps) == (3.0, [2.0, 0.0, 1.0])


async def test_pieces_may_be_cut_anywhere() -> None:
    for size in (1, 2, 3, 7, 50, len(ANSWER)):
        pieces = [ANSWER[i : i + size] for i in range(0, len(ANSWER), size)]
        sample = read(exchange(*pieces))
        assert (len(sample.times), sample.completion_tokens) == (4, 5)


@pytest.mark.parametrize("end", [0, 20, 60, len(ANSWER) - 40])
async def test_an_answer_that_breaks_off_is_none(end: int) -> None:
    with pytest.raises(RuntimeError, match="broke off"):
        read(exchange(ANSWER[:end]))


async def test_another_status_and_an_error_event_are_said() -> None:
    with pytest.raises(RuntimeError, match="busy"):
        read(exchange(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b'{"error": "busy"}'))
    failed = b'data: {"error": {"message": "lost"}}\n\n'
    with pytest.raises(RuntimeError, match="lost"):
        read(exchange(HEAD + chunk(failed)))


def test_the_rate_counts_tokens_while_all_streams_decode() -> None:
    first = Sample(0.0, [1.0, 2.0, 3.0, 4.0], completion_tokens=4)
    second = Sample(0.0, [2.0, 3.0, 4.0, 5.0], completion_tokens=8)  # two tokens in each text
    # From 2 to 4 seconds: two tokens of the first, four of the second.
    assert decode_rate([first, second]) == 3.0

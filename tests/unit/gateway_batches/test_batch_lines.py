"""Input files as they arrive."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.lines import LineReader, read_chunk


def line(custom_id: str = "a", **fields: Any) -> bytes:
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi"}}
    return json.dumps(request | fields).encode()


def read(*pieces: bytes, max_lines: int = 100, max_line_bytes: int = 1000) -> tuple[LineReader, bytes]:
    reader = LineReader(max_lines=max_lines, max_line_bytes=max_line_bytes)
    chunks = [chunk for piece in pieces for chunk in reader.push(piece)]
    return reader, b"".join([*chunks, *reader.finish()])


def test_a_good_file_is_kept_byte_for_byte() -> None:
    file = line("a") + b"\r\n\n  \n" + line("b", url="/v1/chat/completions", more=1) + b"\n" + line("c")
    reader, kept = read(file)
    assert kept == file
    assert reader.requests == 3
    assert reader.urls == {"/v1/completions", "/v1/chat/completions"}
    found = [(n.number, n.line.custom_id, json.loads(bytes(n.line.body))) for n in read_chunk(7, kept)]
    assert found == [(7, "a", {"prompt": "hi"}), (10, "b", {"prompt": "hi"}), (11, "c", {"prompt": "hi"})]


@pytest.mark.parametrize(
    ("bad", "message", "param"),
    [
        (b"{", "Line 3: The body is not valid JSON", "file[3]"),
        (b"[]", "Line 3: Invalid request body: Expected `object`, got `array`", "file[3]"),
        (b"\xff", "Line 3: The body is not valid JSON", "file[3]"),
        (line(""), "Line 3: .*length >= 1", "file[3].custom_id"),
        (line("x" * 257), "Line 3: .*length <= 256", "file[3].custom_id"),
        (line("first"), "Line 3: custom_id 'first' was used before", "file[3].custom_id"),
        (line("b", method="GET"), "Line 3: .*Invalid enum value 'GET'", "file[3].method"),
        (line("b", url="/v1/embeddings"), "Line 3: .*Invalid enum value '/v1/embeddings'", "file[3].url"),
        (line("b", body=[]), "Line 3: body must be an object", "file[3].body"),
        (line("b", body=None), "Line 3: body must be an object", "file[3].body"),
        (b'{"custom_id": "b"}', "Line 3: .*missing required field `body`", "file[3].body"),
        (line("b", body={"prompt": "x" * 1000}), "Line 3: longer than 1000 bytes", "file[3]"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(bad: bytes, message: str, param: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as error:
        read(line("first") + b"\n\n" + bad + b"\n" + line("last"))
    assert error.value.param == param


def test_a_line_that_does_not_end_is_refused_before_its_end() -> None:
    reader = LineReader(max_lines=10, max_line_bytes=1000)
    reader.push(b"x" * 1000)
    with pytest.raises(InvalidRequest, match="Line 1: longer than 1000 bytes"):
        reader.push(b"x")


@pytest.mark.parametrize("file", [b"", b"\n \n"])
def test_a_file_without_requests_is_refused(file: bytes) -> None:
    with pytest.raises(InvalidRequest, match="The file holds no requests"):
        read(file)


def test_a_file_with_too_many_requests_is_refused() -> None:
    read(line("a") + b"\n" + line("b") + b"\n", max_lines=2)
    with pytest.raises(InvalidRequest, match="The file has more than 2 requests"):
        read(line("a") + b"\n" + line("b") + b"\n" + line("c"), max_lines=2)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 300_000), min_size=1, max_size=6), st.lists(st.integers(1, 700_000), max_size=5)
)
def test_chunks_are_whole_lines_of_bounded_size_however_the_file_is_cut(
    sizes: list[int], cuts: list[int]
) -> None:
    file = b"\n".join(line(str(i), body={"prompt": "x" * size}) for i, size in enumerate(sizes))
    reader = LineReader(max_lines=10, max_line_bytes=400_000)
    chunks, rest = [], file
    for cut in cuts:
        piece, rest = rest[:cut], rest[cut:]
        chunks += reader.push(piece)
    chunks += [*reader.push(rest), *reader.finish()]
    assert b"".join(chunks) == file
    numbers = []
    first = 1
    for chunk in chunks:
        assert len(chunk) <= 256 << 10 or chunk.count(b"\n") <= 1
        numbers += [n.number for n in read_chunk(first, chunk)]
        first += chunk.count(b"\n")
    assert numbers == list(range(1, len(sizes) + 1))

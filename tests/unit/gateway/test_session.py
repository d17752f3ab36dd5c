"""Session keys."""

import hashlib

import pytest
from multidict import CIMultiDict

from paceline.contracts.hashing import extend_chain
from paceline.gateway.session import HEADERS, session_key

SALT = b"s" * 32
PROMPT = list(range(600))


def key(headers: dict[str, str] | None = None, cache_key: str | None = None, salt: bytes = SALT) -> bytes:
    return session_key(CIMultiDict(headers or {}), cache_key, salt=salt, prompt=PROMPT)


def named(value: str) -> bytes:
    return hashlib.sha256(b"paceline/session/1" + SALT + value.encode()).digest()


@pytest.mark.parametrize("position", range(len(HEADERS)))
def test_the_first_header_of_the_list_counts_in_any_case(position: int) -> None:
    headers = {h.title(): h for h in HEADERS[position:]}
    assert key(headers, "body") == named(HEADERS[position])


def test_the_body_comes_after_the_headers_and_empty_ones_do_not_count() -> None:
    assert key({"x-session-id": ""}, "body") == named("body")


def test_without_a_name_the_first_four_pages_are_the_key() -> None:
    assert key() == extend_chain(SALT, PROMPT)[3]
    grown = session_key({}, None, salt=SALT, prompt=[*PROMPT, 1, 2, 3])
    assert grown == key()
    short = session_key({}, None, salt=SALT, prompt=PROMPT[:130])
    assert short == extend_chain(SALT, PROMPT)[1]
    assert session_key({}, None, salt=SALT, prompt=PROMPT[:63]) == b""


def test_tenants_never_share_a_key() -> None:
    assert key({"x-session-id": "a"}) != key({"x-session-id": "a"}, salt=b"t" * 32)
    assert key() != key(salt=b"t" * 32)


def test_bytes_that_are_no_utf8_are_a_name_too() -> None:
    assert len(key({"x-session-id": "\udcff"})) == 32

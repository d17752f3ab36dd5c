"""Content hashes of pages, against the formula written out by hand."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.hashing import PAGE_TOKENS, extend_chain, group_key, page_key, tenant_salt


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def page_hash(parent: bytes, tokens: list[int]) -> bytes:
    assert len(tokens) == 64
    return sha256(b"paceline/page/1", parent, *(struct.pack("<i", t) for t in tokens))


def test_golden_vectors() -> None:
    salt = tenant_salt("acme", b"secret")
    assert salt == sha256(b"paceline/salt/1", sha256(b"secret"), b"acme")
    first, second = extend_chain(salt, range(130))
    assert first == page_hash(salt, list(range(64)))
    assert second == page_hash(first, list(range(64, 128)))
    assert group_key(second, 0) == second
    assert group_key(second, 3) == second + b"\x03\x00"
    assert page_key(second, b"\x07" * 32) == sha256(b"paceline/key/1", b"\x07" * 32, second)
    assert [salt.hex(), second.hex()] == [
        "92fa9689d5652e261602dcbce9b0bf80db604b379249324eaca698ac7b558cdf",
        "a658358870cf31947179837a1d50ae6833035d817e627ee688c377d8e262c649",
    ]


@given(st.lists(st.integers(0, 2**31 - 1), max_size=300), st.integers(0, 4))
def test_a_chain_may_be_extended_from_any_full_page(tokens: list[int], pages: int) -> None:
    root = tenant_salt("acme")
    whole = extend_chain(root, tokens)
    assert len(whole) == len(tokens) // PAGE_TOKENS
    head = extend_chain(root, tokens[: pages * PAGE_TOKENS])
    assert head == whole[:pages]
    assert head + extend_chain((head or [root])[-1], tokens[len(head) * PAGE_TOKENS :]) == whole


def test_a_hash_names_every_token_before_it() -> None:
    root = tenant_salt("acme")
    tokens = list(range(192))
    base = extend_chain(root, tokens)
    for position in (0, 63, 64, 191):
        changed = [*tokens[:position], 9999, *tokens[position + 1 :]]
        page = position // PAGE_TOKENS
        other = extend_chain(root, changed)
        assert other[:page] == base[:page]
        assert not set(other[page:]) & set(base)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", b""), ("b", b"")),
        (("a", b""), ("a", b"x")),
        (("ab", b""), ("a", b"b")),
        (("", b"a"), ("a", b"")),
    ],
)
def test_tenants_and_secrets_never_share_a_chain(one: tuple[str, bytes], other: tuple[str, bytes]) -> None:
    assert tenant_salt(*one) != tenant_salt(*other)

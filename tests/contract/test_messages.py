"""The JSON half of the wire."""

from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts import messages as m
from paceline.contracts import subjects
from paceline.contracts.codec import Decoder, encode
from paceline.contracts.errors import ProtocolError
from paceline.contracts.subjects import Endpoint
from tests.contract.golden import GOLDEN
from tests.contract.strategies import values

KINDS = [kind for kind in m.Message.__subclasses__() if kind.__module__ == m.__name__]
ENDPOINTS: list[Endpoint[Any, Any]] = [e for e in vars(subjects).values() if isinstance(e, Endpoint)]


def test_every_message_has_golden_bytes() -> None:
    assert [type(message) for message, _ in GOLDEN] == KINDS


@pytest.mark.parametrize(("message", "data"), GOLDEN, ids=lambda x: type(x).__name__)
def test_golden_bytes(message: m.Message, data: bytes) -> None:
    assert encode(message) == data
    assert Decoder[Any](type(message))(data) == message


@given(st.one_of([values(kind) for kind in KINDS]))
def test_any_message_survives_the_wire(message: m.Message) -> None:
    assert Decoder[Any](type(message))(encode(message)) == message


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.verb)
def test_an_endpoint_answers_with_its_reply_or_a_refusal(endpoint: Endpoint[Any, Any]) -> None:
    refused = m.Refused(code="busy", message="full", retry_after_s=1.0)
    assert endpoint.decode_reply(encode(refused)) == refused
    for message, data in GOLDEN:
        if isinstance(message, endpoint.reply):
            assert endpoint.decode_reply(data) == message
        elif message != refused and not isinstance(message, m.Refused):
            with pytest.raises(ProtocolError):
                endpoint.decode_reply(data)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.verb)
def test_an_endpoint_takes_its_request_and_no_other(endpoint: Endpoint[Any, Any]) -> None:
    for message, data in GOLDEN:
        if isinstance(message, endpoint.request):
            assert endpoint.decode_request(data) == message
        else:
            with pytest.raises(ProtocolError):
                endpoint.decode_request(data)


def test_events_are_told_apart_by_type() -> None:
    events = [
        (message, data) for message, data in GOLDEN if isinstance(message, m.Started | m.Done | m.Failed)
    ]
    assert len(events) == 3
    for message, data in events:
        assert subjects.decode_event(data) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xa7\x01",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"ack","v":2}',
        b'{"type":"unknown","v":2}',
        b'{"type":"failed","request_id":"r","attempt":1,"worker":"d1","code":"internal"}',
        b'{"type":"failed","request_id":"r","attempt":"1","worker":"d1","code":"internal","message":"m"}',
        b'{"type":"failed","request_id":"r","attempt":1,"worker":"d1","code":"internal","message":"m","v":3}',
        b'{"type":"failed","request_id":"r","attempt":1,"worker":"d1","code":"internal","message":"m","v":2',
    ],
)
def test_anything_else_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        subjects.decode_event(data)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        subjects.decode_beacon(data)


@pytest.mark.parametrize(("message", "data"), GOLDEN, ids=lambda x: type(x).__name__)
def test_every_versioned_message_of_another_version_is_refused(message: m.Message, data: bytes) -> None:
    if "v" not in message.__struct_fields__:
        # Only travels inside another message.
        assert not any(type(message) in (e.request, e.reply) for e in ENDPOINTS)
        return
    other = orjson.dumps({**orjson.loads(data), "v": m.VERSION + 1})
    with pytest.raises(ProtocolError, match=f"version {m.VERSION + 1}"):
        Decoder[Any](type(message))(other)


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    data = b'{"type":"cancel","request_id":"r","attempt":3,"reason":"user","v":2}'
    assert subjects.CANCEL.decode_request(data) == m.Cancel(request_id="r", attempt=3)


def test_messages_are_frozen() -> None:
    for kind in KINDS:
        assert kind.__struct_config__.frozen, kind
    with pytest.raises(AttributeError):
        setattr(m.Ack(), "v", 2)  # noqa: B010
    assert isinstance(m.Ack(), msgspec.Struct)

"""Where everything travels."""

import re

import pytest

from paceline.contracts import errors, subjects
from paceline.contracts.subjects import Endpoint


def test_every_endpoint_has_its_subject() -> None:
    endpoints = {name: e for name, e in vars(subjects).items() if isinstance(e, Endpoint)}
    found = {name: e.subject("decode", "w1") for name, e in endpoints.items()}
    assert found == {
        "PREFILL": "paceline.decode.w1.prefill",
        "GENERATE": "paceline.decode.w1.generate",
        "CANCEL": "paceline.decode.w1.cancel",
        "RESEND": "paceline.decode.w1.resend",
        "CONFIRM": "paceline.decode.w1.confirm",
        "DRAIN": "paceline.decode.w1.drain",
        "ADMIT": "paceline.decode.w1.admit",
        "COMMIT": "paceline.decode.w1.commit",
        "WITHDRAW": "paceline.decode.w1.withdraw",
        "LOOKUP": "paceline.decode.w1.lookup",
        "RESERVE": "paceline.decode.w1.reserve",
        "PUBLISH": "paceline.decode.w1.publish",
        "RELEASE": "paceline.decode.w1.release",
        "DRAFT_OPEN": "paceline.decode.w1.open",
        "DRAFT_PROPOSE": "paceline.decode.w1.propose",
        "DRAFT_CLOSE": "paceline.decode.w1.close",
    }
    # The micro service protocol allows no other names.
    assert all(re.fullmatch("[A-Za-z0-9_-]+", e.verb) for e in endpoints.values())


def test_beacons_and_events_have_their_subjects() -> None:
    assert subjects.beacon("decode", "w1") == "paceline.load.decode.w1"
    assert subjects.beacon("*", "*") == "paceline.load.*.*"
    assert subjects.events("gw1") == "paceline.gw.gw1"


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("invalid_request", errors.InvalidRequest, False),
        ("context_length_exceeded", errors.ContextTooLong, False),
        ("model_not_found", errors.ModelNotFound, False),
        ("busy", errors.Busy, True),
        ("unavailable", errors.Unavailable, True),
        ("worker_lost", errors.WorkerLost, True),
        ("cancelled", errors.Cancelled, False),
        ("integrity", errors.IntegrityError, True),
        ("protocol", errors.ProtocolError, False),
        ("internal", errors.InternalError, True),
        ("of a later version", errors.InternalError, True),
    ],
)
def test_codes_name_errors(code: str, kind: type[errors.PacelineError], retryable: bool) -> None:
    error = errors.from_code(code, "why")
    assert (type(error), error.message, error.retryable) == (kind, "why", retryable)

"""Which forms of pages a prefill worker accepts from a decode worker's admission."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import KvForm
from paceline.engine.layout import KvDtype, PageGroup, PageLayout, Plane
from paceline.engine.profile import KvProfile
from paceline.prefill.converters import Converters

LAYOUT = PageLayout((PageGroup((Plane(0, "kv", heads=4, dim=8, format="bfloat16"),)),))
OWN = KvProfile(b"m" * 32, "bfloat16", LAYOUT)


def form(profile: KvProfile) -> KvForm:
    return KvForm(profile_id=profile.id, dtype=profile.dtype, scales=list(profile.scales))


def test_equal_pages_go_as_they_are() -> None:
    page = np.arange(LAYOUT.page_bytes, dtype=np.uint32).astype(np.uint8)
    assert Converters().towards(OWN, form(OWN))(0, page) is page


@pytest.mark.parametrize(
    ("dtype", "scales"), [("float32", ()), ("fp8_e4m3", (0.5, 0.25)), ("fp8_per_token_head", ())]
)
def test_pages_become_those_of_the_peer(dtype: KvDtype, scales: tuple[float, ...]) -> None:
    peer = OWN.stored_as(dtype, scales)
    ones = np.full(LAYOUT.page_bytes // 2, 0x3F80, np.uint16).view(np.uint8)
    found = Converters().towards(OWN, form(peer))(0, ones)
    assert found.shape == (peer.layout.page_bytes,)
    back = Converters().towards(peer, form(OWN))(0, found)
    assert np.array_equal(back, ones)


def test_a_form_is_looked_up_once_and_only_the_latest_are_kept() -> None:
    converters = Converters()
    forms = [form(OWN.stored_as("fp8_e4m3", (1.0, float(i)))) for i in range(1, 66)]
    first = converters.towards(OWN, forms[0])
    assert converters.towards(OWN, forms[0]) == first
    for each in forms[1:]:
        converters.towards(OWN, each)
    assert converters.towards(OWN, forms[0]) != first


FP8 = form(OWN.stored_as("fp8_e4m3", (0.5, 0.25)))


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (KvForm(b"x" * 32, "int4", []), "KV dtype 'int4' is none of float32, bfloat16, fp8_e4m3"),
        (KvForm(b"x" * 32, "fp8_e4m3", []), "fp8_e4m3 needs 2 positive scales"),
        (KvForm(b"x" * 32, "fp8_e4m3", [0.5] * 3), "fp8_e4m3 needs 2 positive scales"),
        (KvForm(b"x" * 32, "fp8_e4m3", [0.5, -1.0]), "fp8_e4m3 needs 2 positive scales"),
        (KvForm(b"x" * 32, "float32", [0.5]), "float32 needs 0 positive scales"),
        (KvForm(FP8.profile_id, "fp8_e4m3", [0.5, 0.5]), "another model or layout"),
        (KvForm(FP8.profile_id, "fp8_per_token_head", []), "another model or layout"),
        (form(replace(OWN, fingerprint=b"n" * 32)), "another model or layout"),
        (
            form(KvProfile(OWN.fingerprint, "bfloat16", PageLayout(LAYOUT.groups * 2))),
            "another model or layout",
        ),
    ],
)
def test_other_forms_are_refused(refused: KvForm, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        Converters().towards(OWN, refused)

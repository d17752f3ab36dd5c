"""Requests and tokens per minute."""

import pytest

from paceline.contracts.errors import Busy
from paceline.gateway.limits import Limits, Meter, Quota


def test_without_a_quota_nothing_is_limited_or_told() -> None:
    meter = Meter(Quota(), 0.0)
    for _ in range(1000):
        meter.take_request(0.0)
        meter.take_prompt(10**9, 0.0)
        meter.take_answer(10**9)
    assert meter.headers(0.0) == {}


def test_requests_of_a_minute_and_when_to_come_again() -> None:
    meter = Meter(Quota(requests=2), 0.0)
    meter.take_request(0.0)
    meter.take_request(0.0)
    with pytest.raises(Busy, match="2 requests per minute") as caught:
        meter.take_request(10.0)
    assert caught.value.retry_after_s == pytest.approx(20.0)
    meter.take_request(30.0)
    with pytest.raises(Busy):
        meter.take_request(30.0)


def test_an_answer_may_overdraw_what_the_next_request_waits_for() -> None:
    meter = Meter(Quota(tokens=100), 0.0)
    meter.take_request(0.0)
    meter.take_prompt(60, 0.0)
    meter.take_answer(100)
    with pytest.raises(Busy) as caught:
        meter.take_request(0.0)
    assert caught.value.retry_after_s == pytest.approx((60 + 1) * 60 / 100)
    assert meter.headers(0.0)["x-ratelimit-remaining-tokens"] == "0"
    meter.take_request(37.0)
    with pytest.raises(Busy):
        meter.take_prompt(50, 37.0)


def test_a_prompt_larger_than_the_quota_needs_all_of_it() -> None:
    meter = Meter(Quota(tokens=100), 0.0)
    meter.take_prompt(500, 0.0)
    with pytest.raises(Busy):
        meter.take_prompt(1, 200.0)
    meter.take_prompt(500, 300.0)


def test_headers_are_those_of_openai() -> None:
    meter = Meter(Quota(requests=60, tokens=600), 0.0)
    meter.take_request(0.0)
    meter.take_prompt(60, 0.0)
    assert meter.headers(0.5) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "0.500s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "545",
        "x-ratelimit-reset-tokens": "5.500s",
    }


def test_each_tenant_has_a_meter() -> None:
    limits = Limits()
    quota = Quota(requests=1)
    limits.meter("a", quota, 0.0).take_request(0.0)
    limits.meter("b", quota, 0.0).take_request(0.0)
    with pytest.raises(Busy):
        limits.meter("a", quota, 1.0).take_request(1.0)

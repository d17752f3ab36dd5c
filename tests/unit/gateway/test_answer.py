"""What an answer cost, and the list of models."""

from dataclasses import replace

import pytest

from paceline.contracts.messages import CachedTokens, Done, Started, Timings
from paceline.gateway.answer import Usage, models, total
from paceline.gateway.prices import parse_prices

STARTED = Started(
    request_id="ab",
    attempt=1,
    worker="p",
    cached=CachedTokens(device=64, host=128),
    timings=Timings(queue=0.25, store=0.5, compute=1.0),
)


def done(drafted: int = 0, accepted: int = 0) -> Done:
    return Done(
        request_id="ab",
        attempt=1,
        worker="d",
        finish_reason="stop",
        tokens=4,
        drafted=drafted,
        accepted=accepted,
        steps=4,
        compute=0.5,
        handoff=2.0,
    )


def test_usage_reports_what_was_reused_and_where_the_time_went() -> None:
    assert Usage(200, 4, 0.25, STARTED, done(drafted=6, accepted=5)).body() == {
        "prompt_tokens": 200,
        "completion_tokens": 4,
        "total_tokens": 204,
        "prompt_tokens_details": {"cached_tokens": 192},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 5,
            "rejected_prediction_tokens": 1,
        },
        "paceline": {
            "cached": {"device": 64, "host": 128},
            "drafted": 6,
            "accepted": 5,
            "stages": {"queue": 0.5, "store": 0.5, "prefill": 1.0, "handoff": 2.0, "decode_step": 0.125},
            "workers": {"prompt": "p", "decode": "d"},
        },
    }


def test_cached_tokens_are_zero_and_present_when_nothing_is_known() -> None:
    body = Usage(1, 0, 0.0, None, None).body()
    assert body["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["completion_tokens_details"]["reasoning_tokens"] == 0
    assert body["paceline"]["stages"]["decode_step"] == 0.0


def test_money_where_prices_are_set() -> None:
    prices = parse_prices("1.0,0.25,4")
    assert prices is not None
    usage = Usage(200, 4, 0.0, STARTED, done())
    assert prices.cost(usage) == (8 * 1.0 + 192 * 0.25 + 4 * 4) / 1e6
    assert "cost" not in usage.body()["paceline"]
    assert replace(usage, cost=0.5).body()["paceline"]["cost"] == 0.5
    assert parse_prices("") is None


@pytest.mark.parametrize("text", ["1", "1,2", "1,2,3,4", "1,2,x", "1,2,-3", "1,2,inf", "1,2,nan"])
def test_prices_are_three_numbers(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is Python's own for some
        parse_prices(text)


def test_several_answers_cost_what_they_cost_together() -> None:
    first = Usage(200, 4, 0.25, STARTED, done(drafted=6, accepted=5), reasoning_tokens=1)
    second = Usage(0, 3, 0.25, None, done(drafted=2, accepted=0), reasoning_tokens=2)
    third = Usage(100, 2, 0.25, STARTED, None)
    body = total([first, second, third]).body()
    assert (body["prompt_tokens"], body["completion_tokens"], body["total_tokens"]) == (300, 9, 309)
    assert body["prompt_tokens_details"] == {"cached_tokens": 384}
    assert body["completion_tokens_details"] == {
        "reasoning_tokens": 3,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 3,
    }


def test_the_model_list() -> None:
    entry = {"id": "m", "object": "model", "created": 5, "owned_by": "paceline"}
    assert models("m", 5) == {"object": "list", "data": [entry]}

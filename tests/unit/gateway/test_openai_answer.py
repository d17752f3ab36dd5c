"""Answers and errors in OpenAI's shapes, to the byte."""

import json

import pytest

from paceline.contracts import errors as e
from paceline.contracts.messages import CachedTokens, Done, Started, Timings
from paceline.gateway import sse
from paceline.gateway.answer import Head, Usage, completion, models
from paceline.gateway.errors import Problem, internal, problem_of, too_large

HEAD = Head("ab", "m", 12)
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
        "completion_tokens_details": {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 1},
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
    assert "completion_tokens_details" not in body
    assert body["paceline"]["stages"]["decode_step"] == 0.0


def test_a_whole_completion() -> None:
    usage = Usage(1, 4, 0.0, STARTED, done())
    assert completion(HEAD, "hey", "length", usage) == {
        "id": "chatcmpl-ab",
        "object": "chat.completion",
        "created": 12,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hey", "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": usage.body(),
    }


def test_the_model_list() -> None:
    entry = {"id": "m", "object": "model", "created": 5, "owned_by": "paceline"}
    assert models("m", 5) == {"object": "list", "data": [entry]}


def test_the_events_of_a_stream() -> None:
    chunks = sse.Chunks(HEAD, include_usage=False)
    start = b'data: {"id":"chatcmpl-ab","object":"chat.completion.chunk","created":12,"model":"m","choices":['
    role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    content = b'{"index":0,"delta":{"content":"a\\n\\"\xc3\xa9"},"logprobs":null,"finish_reason":null}]}\n\n'
    finish = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
    assert chunks.role() == start + role
    assert chunks.content('a\n"é') == start + content
    assert chunks.finish("stop") == start + finish


def test_with_usage_all_chunks_but_the_last_have_a_null_usage() -> None:
    chunks = sse.Chunks(HEAD, include_usage=True)
    usage = Usage(1, 2, 0.0, None, None)
    events = [chunks.role(), chunks.content("x"), chunks.finish("length"), chunks.usage(usage)]
    bodies = [json.loads(e.removeprefix(b"data: ")) for e in events]
    assert [b["usage"] for b in bodies] == [None, None, None, usage.body()]
    assert bodies[-1]["choices"] == []
    assert len({(b["id"], b["created"], b["model"], b["object"]) for b in bodies}) == 1


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (e.InvalidRequest("m", param="n"), Problem(400, "m", "invalid_request_error", "invalid_value", "n")),
        (e.ContextTooLong("m"), Problem(400, "m", "invalid_request_error", "context_length_exceeded")),
        (e.ModelNotFound("m"), Problem(404, "m", "invalid_request_error", "model_not_found")),
        (
            e.Busy("m", retry_after_s=2.1),
            Problem(429, "m", "rate_limit_error", "rate_limit_exceeded", None, 3),
        ),
        (e.Unavailable("m"), Problem(503, "m", "server_error", "service_unavailable", None, 1)),
        (e.WorkerLost("m"), Problem(502, "m", "server_error", "worker_lost")),
    ],
)
def test_errors_of_the_mesh_become_problems(error: e.PacelineError, problem: Problem) -> None:
    assert problem_of(error) == problem


@pytest.mark.parametrize("cls", [e.IntegrityError, e.ProtocolError, e.InternalError, e.Cancelled])
def test_faults_of_ours_are_server_errors_without_details(cls: type[e.PacelineError]) -> None:
    problem = problem_of(cls("page 7 of worker x"))
    assert (problem.status, problem.type, problem.code) == (500, "server_error", cls.code)
    assert "page 7" not in problem.message


def test_every_error_body_has_the_four_keys() -> None:
    assert json.loads(sse.error(too_large(8)).removeprefix(b"data: ")) == {
        "error": {
            "message": "The body is larger than 8 bytes",
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    }
    assert internal().body()["error"].keys() == {"message", "type", "param", "code"}


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert problem_of(e.Busy("m", retry_after_s=0.01)).headers() == {"Retry-After": "1"}
    assert problem_of(e.WorkerLost("m")).headers() == {}

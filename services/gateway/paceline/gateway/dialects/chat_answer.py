"""The objects of a chat completion that is not streamed, and those that its chunks share."""

from collections.abc import Sequence
from typing import Any

from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import Answer, TokenLogprob


def completion(head: Head, answers: Sequence[Answer], usage: Usage, *, logprobs: bool) -> dict[str, Any]:
    """The body of an answer."""
    return {
        "id": completion_id(head),
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [
            {
                "index": i,
                "message": _message(answer),
                "logprobs": token_logprobs(answer.logprobs) if logprobs else None,
                "finish_reason": answer.end.reason,
            }
            for i, answer in enumerate(answers)
        ],
        "usage": usage.body(),
    }


def completion_id(head: Head) -> str:
    return f"chatcmpl-{head.request_id}"


def token_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """A `logprobs` object. `token` is text, with U+FFFD for bytes that are only a part of a character; `bytes` can be
    joined."""
    return {
        "content": [
            {
                **_token(t.token, t.logprob),
                "top_logprobs": [_token(alternative, logprob) for alternative, logprob in t.top],
            }
            for t in tokens
        ],
        "refusal": None,
    }


def _token(token: bytes, logprob: float) -> dict[str, Any]:
    # JSON has no infinity; this is what OpenAI writes for what is impossible.
    finite = max(logprob, -9999.0)
    return {"token": token.decode(errors="replace"), "logprob": finite, "bytes": list(token)}


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if answer.calls and not answer.text else answer.text,
        "refusal": None,
    }
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in answer.calls
        ]
    return message

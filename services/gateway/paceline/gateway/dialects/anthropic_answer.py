"""The objects of an answer in Anthropic's shape, whole, and those that its events share."""

from typing import Any

import orjson

from paceline.gateway.answer import Head, Usage
from paceline.gateway.deltas import Answer, End, ToolCall

# Clients send it back and refuse thinking without one.
SIGNATURE = "paceline"


def message(head: Head) -> dict[str, Any]:
    """A message of which nothing is known but who answers."""
    return {
        "id": f"msg_{head.request_id}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def whole_message(head: Head, answer: Answer, usage: Usage) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return message(head) | {"content": _content(answer)} | stop(answer.end) | {"usage": final_usage(usage)}


def count_body(tokens: int) -> dict[str, int]:
    """The body of an answer of count_tokens."""
    return {"input_tokens": tokens}


def stop(end: End) -> dict[str, Any]:
    """Why an answer ended."""
    if end.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return {"stop_reason": reasons[end.reason], "stop_sequence": None}


def first_usage(usage: Usage) -> dict[str, Any]:
    """Input without the tokens that were reused, which are counted by themselves. No tokens are counted for writing the
    cache: every prompt is kept, and nobody pays for it."""
    cached = usage.cached.total
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def final_usage(usage: Usage) -> dict[str, Any]:
    """Once all is known, with how much of it was thinking and where the time went."""
    return first_usage(usage) | {
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "paceline": usage.body()["paceline"],
    }


def _content(answer: Answer) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call_input(call)}
        for call in answer.calls
    ]
    return content


def call_input(call: ToolCall) -> dict[str, Any]:
    """Arguments that are no JSON object, because the answer was cut short or the model erred, stand under `_raw`: as
    an object with some of them left out they could be taken for a call that the model meant."""
    if not call.arguments.strip():
        return {}
    try:
        value = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"_raw": call.arguments}

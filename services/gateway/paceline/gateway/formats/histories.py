"""Conversations for templates that know less than clients do."""

from collections.abc import Iterator, Sequence
from typing import Any


def one_call_each(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages with several calls become several, each followed by its result. What the model said and thought stays
    with the first."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls")
        if not calls:
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            continue
        results: list[dict[str, Any]] = []
        while at < len(messages) and messages[at].get("role") == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": ""}
            yield {**said, "tool_calls": [call]}
            yield from (result for result in results if result.get("tool_call_id") == call["id"])
        known = {call["id"] for call in calls}
        yield from (result for result in results if result.get("tool_call_id") not in known)

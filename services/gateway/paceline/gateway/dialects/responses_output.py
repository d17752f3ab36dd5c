"""The output items of a response: their shapes, and those of an answer that is not streamed."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from paceline.gateway.answer import Head
from paceline.gateway.deltas import Answer, TokenLogprob
from paceline.gateway.dialects.chat_answer import token_logprobs

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]

Names: TypeAlias = Mapping[str, tuple[str, str]]
"""The namespace and own name of functions in a namespace, by the name that the model knows."""


def item_id(prefix: Literal["msg", "rs", "fc"], head: Head, place: int) -> str:
    """Unique in the world, as clients merge items of the same id. `place` is the item's in the output."""
    return f"{prefix}_{head.request_id}{place:02x}"


def message_item(item_id: str, status: Status, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(parts)}


def text_part(text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": logged(logprobs), "text": text}


def reasoning_item(item_id: str, status: Status, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": list(parts)}


def thought_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def call_item(
    item_id: str, status: Status, call_id: str, name: str, arguments: str, names: Names
) -> dict[str, Any]:
    """`name` is the function's as the model knows it."""
    item: dict[str, Any] = {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }
    if name in names:
        item["namespace"], item["name"] = names[name]
    return item


def logged(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Log probabilities as items and events hold them."""
    entries: list[dict[str, Any]] = token_logprobs(logprobs)["content"]
    return entries


def output_of(answer: Answer, head: Head, names: Names, *, log: bool) -> list[dict[str, Any]]:
    """An answer's items. There is always one, and what was cut short is the last."""
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        part = thought_part(answer.reasoning)
        output.append(reasoning_item(item_id("rs", head, 0), "completed", [part]))
    if answer.text or not (output or answer.calls):
        part = text_part(answer.text, answer.logprobs if log else ())
        output.append(message_item(item_id("msg", head, len(output)), "completed", [part]))
    for call in answer.calls:
        own_id = item_id("fc", head, len(output))
        output.append(call_item(own_id, "completed", call.id, call.name, call.arguments, names))
    if answer.end.reason == "length":
        output[-1]["status"] = "incomplete"
    return output

"""The response object: what the request decides of it, what became of it, and its usage."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paceline.gateway.answer import Head, Usage
from paceline.gateway.dialects.chat_tools import schema_of
from paceline.gateway.dialects.responses_request import SCHEMA, Format, ResponsesRequest
from paceline.gateway.dialects.responses_tools import Choice, ChosenTool, Offer
from paceline.gateway.errors import Problem

# Codes that clients act upon; Codex, for one, gives up at some and waits after others.
_CODES = ("context_length_exceeded", "rate_limit_exceeded", "insufficient_quota")


def response_id(head: Head) -> str:
    return f"resp_{head.request_id}"


def frame(request: ResponsesRequest, offer: Offer, head: Head, *, stored: bool) -> dict[str, Any]:
    """The part of a response that is known before its first token."""
    return {
        "id": response_id(head),
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "background": False,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": request.reasoning.effort if request.reasoning else None,
            "summary": request.reasoning.summary if request.reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "flex" if request.low_priority else "default",
        "store": stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": _text_config(request),
        "tool_choice": _choice(request.tool_choice),
        "tools": list(offer.shown),
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "user": request.user,
    }


def begun(frame: dict[str, Any]) -> dict[str, Any]:
    """The response before its first token."""
    return _response(frame, "in_progress", [])


def ended(
    frame: dict[str, Any], output: Sequence[dict[str, Any]], usage: Usage, *, cut: bool, at: float
) -> dict[str, Any]:
    """The response in full; `cut` when tokens ran out before it was over. `at` is in UNIX seconds."""
    if cut:
        details = {"reason": "max_output_tokens"}
        return _response(frame, "incomplete", output, incomplete_details=details, usage=_usage(usage))
    return _response(frame, "completed", output, completed_at=int(at), usage=_usage(usage))


def failed(frame: dict[str, Any], output: Sequence[dict[str, Any]], problem: Problem) -> dict[str, Any]:
    """What there is of the response, and why there is no more."""
    return _response(frame, "failed", output, error=_error(problem))


def _response(
    frame: dict[str, Any],
    status: Literal["in_progress", "completed", "incomplete", "failed"],
    output: Sequence[dict[str, Any]],
    *,
    completed_at: int | None = None,
    error: dict[str, Any] | None = None,
    incomplete_details: dict[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        **frame,
        "status": status,
        "completed_at": completed_at,
        "error": error,
        "incomplete_details": incomplete_details,
        "output": list(output),
        "usage": usage,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached.total, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "paceline": usage.body()["paceline"],
    }


def _error(problem: Problem) -> dict[str, Any]:
    code = problem.code
    if code not in _CODES:
        code = "server_error" if problem.type == "server_error" else "invalid_prompt"
    # Codex takes the time to wait from the message.
    again = f". Please try again in {problem.retry_after_s}s" if problem.retry_after_s is not None else ""
    return {"code": code, "message": problem.message + again}


def _text_config(request: ResponsesRequest) -> dict[str, Any]:
    wanted = request.text.format if request.text else None
    config: dict[str, Any] = {"format": _format(wanted or Format("text"))}
    if request.text and request.text.verbosity:
        config["verbosity"] = request.text.verbosity
    return config


def _format(wanted: Format) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name,
        "description": wanted.description,
        "schema": schema_of(wanted.schema, SCHEMA),
        "strict": bool(wanted.strict),
    }


def _choice(choice: Choice | None) -> Any:
    return msgspec.to_builtins(choice) if isinstance(choice, ChosenTool) else choice or "auto"

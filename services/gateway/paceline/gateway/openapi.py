"""The OpenAPI document: requests from the structs that decode them, answers as they are written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.gateway.dialects.chat import ChatRequest
from paceline.gateway.dialects.completions import CompletionRequest
from paceline.gateway.dialects.openai_fields import RANGES
from paceline.gateway.dialects.tokens import DetokenizeRequest, TokenizeRequest

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_TEXT = {"type": ["string", "null"]}


def _object(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    """All of whose properties are there but the `optional` ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        "completion_tokens_details": _object(
            {
                "reasoning_tokens": _COUNT,
                "accepted_prediction_tokens": _COUNT,
                "rejected_prediction_tokens": _COUNT,
            }
        ),
        "paceline": {"type": "object"},
    }
)
_TOKEN = {"token": _TEXT, "logprob": {"type": "number"}, "bytes": _array(_COUNT)}
_LOGPROBS = _object(
    {
        "content": _array(_object({**_TOKEN, "top_logprobs": _array(_object(_TOKEN))})),
        "refusal": {"type": "null"},
    }
)
_CALL = _object(
    {
        "id": _TEXT,
        "type": {"const": "function"},
        "function": _object({"name": _TEXT, "arguments": _TEXT}),
    }
)
_MESSAGE = _object(
    {
        "role": {"const": "assistant"},
        "content": _MAYBE_TEXT,
        "refusal": _MAYBE_TEXT,
        "reasoning_content": _TEXT,
        "tool_calls": _array(_CALL),
    },
    "reasoning_content",
    "tool_calls",
)
_REASON = {"enum": ["stop", "length", "tool_calls"]}
_HEAD = {"id": _TEXT, "created": _COUNT, "model": _TEXT}
_CHAT = _object(
    {
        **_HEAD,
        "object": {"const": "chat.completion"},
        "choices": _array(
            _object(
                {
                    "index": _COUNT,
                    "message": _MESSAGE,
                    "logprobs": {"oneOf": [{"type": "null"}, _LOGPROBS]},
                    "finish_reason": _REASON,
                }
            )
        ),
        "usage": _USAGE,
    }
)
_COMPLETION = _object(
    {
        **_HEAD,
        "object": {"const": "text_completion"},
        "choices": _array(
            _object(
                {
                    "index": _COUNT,
                    "text": _TEXT,
                    "logprobs": {"type": ["object", "null"]},
                    "finish_reason": _REASON,
                }
            )
        ),
        "usage": _USAGE,
    }
)
_ERROR = _object(
    {"error": _object({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT})}
)
_MODEL = _object({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})
_MODELS = _object({"object": {"const": "list"}, "data": _array(_MODEL)})
_TOKENIZED = _object(
    {"count": _COUNT, "max_model_len": _COUNT, "tokens": _array(_COUNT), "token_strs": _array(_TEXT)}
)
_DETOKENIZED = _object({"prompt": _TEXT, "content": _TEXT})


@dataclass(frozen=True)
class _Endpoint:
    """One operation. Those with a `request` are posted, and `streams` say that the answer may be streamed."""

    summary: str
    request: type[msgspec.Struct] | None
    answer: dict[str, Any]
    streams: bool = False


_PATHS = {
    "/v1/chat/completions": _Endpoint("Answer a conversation", ChatRequest, _CHAT, streams=True),
    "/v1/completions": _Endpoint("Go on behind a text", CompletionRequest, _COMPLETION, streams=True),
    "/v1/models": _Endpoint("List models", None, _MODELS),
    "/tokenize": _Endpoint("Turn text into tokens", TokenizeRequest, _TOKENIZED),
    "/detokenize": _Endpoint("Turn tokens into text", DetokenizeRequest, _DETOKENIZED),
}


def document(version: str, model: str) -> dict[str, Any]:
    """OpenAPI 3.1 of what a gateway that has this model serves."""
    structs = [endpoint.request for endpoint in _PATHS.values() if endpoint.request]
    schemas, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    requests = dict(zip(structs, schemas, strict=True))
    for component in components.values():
        for name, field in component.get("properties", {}).items():
            if name == "model":
                component["properties"][name] = {"const": model}
            elif name in RANGES:
                component["properties"][name] = _bounded(field, *RANGES[name])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Paceline", "version": version},
        "paths": {
            path: {"post" if endpoint.request else "get": _operation(endpoint, requests)}
            for path, endpoint in _PATHS.items()
        },
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _bounded(field: dict[str, Any], low: float | None, high: float | None) -> dict[str, Any]:
    bounds = {"minimum": low, "maximum": high}
    wanted = {name: bound for name, bound in bounds.items() if bound is not None}
    kinds = [kind | wanted if kind.get("type") != "null" else kind for kind in field["anyOf"]]
    return {**field, "anyOf": kinds}


def _operation(
    endpoint: _Endpoint, requests: Mapping[type[msgspec.Struct], dict[str, Any]]
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": endpoint.answer}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": _TEXT}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {
                "description": "What went wrong",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if endpoint.request is not None:
        schema = requests[endpoint.request]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation

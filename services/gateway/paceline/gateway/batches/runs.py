"""Workers AI's queued requests: bodies as clients send and read them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta, Raw

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.batches.batch import Batch, Tally
from paceline.gateway.batches.endpoints import model_of
from paceline.gateway.dialects.decoding import decode

_MOST = 1000
_COUNTED = ("prompt_tokens", "completion_tokens", "total_tokens")


class _Body(msgspec.Struct, frozen=True):
    request_id: str | None = None
    requests: Annotated[list[Raw], Meta(min_length=1, max_length=_MOST)] | None = None


class _Reference(msgspec.Struct, frozen=True):
    external_reference: Annotated[str, Meta(max_length=256)] | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """A client asks what became of a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Run:
    """Requests to be queued, as the lines of an input file."""

    lines: tuple[bytes, ...]


_bodies = msgspec.json.Decoder(_Body)
_references = msgspec.json.Decoder(_Reference)


def parse_run(body: bytes) -> Poll | Run:
    """Raises `InvalidRequest`. Whether requests are good ones is seen when they run."""
    asked = decode(_bodies, body)
    if asked.request_id is not None:
        return Poll(asked.request_id)
    if asked.requests is None:
        return Run((_line(body, ""),))
    return Run(tuple(_line(bytes(one), f"requests[{i}]") for i, one in enumerate(asked.requests)))


def queued_view(batch: Batch, tally: Tally) -> dict[str, Any]:
    """While there is no answer yet."""
    begun = tally.completed.requests + tally.failed.requests > 0
    status = "running" if begun else "queued"
    return _envelope({"status": status, "request_id": batch.id, "model": model_of(batch.endpoint)})


def answered_view(results: Iterable[tuple[int, bytes]]) -> dict[str, Any]:
    """All answers, in the order of the requests, whose numbers begin at 1."""
    responses = [_response(line, orjson.loads(result)) for line, result in sorted(results)]
    usages = [r["result"]["usage"] for r in responses if r["success"]]
    usage = {name: sum(u[name] for u in usages) for name in _COUNTED}
    return _envelope({"responses": responses, "usage": usage})


def _line(request: bytes, at: str) -> bytes:
    try:
        reference = decode(_references, request).external_reference
    except InvalidRequest as e:
        param = ".".join(part for part in (at, e.param) if part)
        raise InvalidRequest(e.message, param=param or None) from e
    return orjson.dumps({"custom_id": reference or "", "body": orjson.Fragment(request.replace(b"\n", b" "))})


def _response(line: int, result: dict[str, Any]) -> dict[str, Any]:
    response = {"id": line - 1, "external_reference": result["custom_id"] or None}
    if result["response"] is None:
        error = {"code": 3007, "message": result["error"]["message"]}
        return response | {"success": False, "result": None, "errors": [error]}
    body = result["response"]["body"]
    return response | {name: body[name] for name in ("success", "result", "errors")}


def _envelope(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result, "success": True, "errors": [], "messages": []}

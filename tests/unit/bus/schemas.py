"""JSON schemas of the NATS micro service replies, written down from the rules that the `nats` tool validates by."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"}
_VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?$"}
_METADATA = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 0}
# RFC 3339, which Python's own isoformat and Go both read.
_TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$"}


def _reply(kind: str, properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    common = {
        "type": {"const": f"io.nats.micro.v1.{kind}_response"},
        "name": _NAME,
        "id": {"type": "string", "minLength": 1},
        "version": _VERSION,
        "metadata": _METADATA,
    }
    return _object({**common, **properties}, "metadata", *optional)


def _object(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


_ENDPOINT = {
    "name": _NAME,
    "subject": {"type": "string", "minLength": 1},
    "queue_group": {"type": "string"},
    "metadata": _METADATA,
}
_ENDPOINT_STATS = {
    "name": _NAME,
    "subject": {"type": "string", "minLength": 1},
    "queue_group": {"type": "string"},
    "num_requests": _COUNT,
    "num_errors": _COUNT,
    "last_error": {"type": "string"},
    "processing_time": _COUNT,
    "average_processing_time": _COUNT,
    "data": {},
}

PING = _reply("ping", {})
INFO = _reply(
    "info",
    {
        "description": {"type": "string"},
        "endpoints": {"type": "array", "items": _object(_ENDPOINT, "queue_group", "metadata")},
    },
)
STATS = _reply(
    "stats",
    {
        "started": _TIME,
        "endpoints": {"type": "array", "items": _object(_ENDPOINT_STATS, "queue_group", "data")},
    },
)


def validate(reply: Any, schema: dict[str, Any]) -> None:
    """Raises if the tool would drop `reply`."""
    jsonschema.validate(reply, schema, cls=jsonschema.Draft202012Validator)

"""Bodies to structs, with errors that say where a body is wrong."""

import re
from typing import Any, TypeVar

import msgspec

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.dialects.amount import check_amount

T = TypeVar("T")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises `InvalidRequest`, whose `param` is the path of what is wrong, as in `messages[0].content`."""
    check_amount(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as e:
        raise InvalidRequest(f"Invalid request body: {e}", param=_path(str(e))) from e
    except msgspec.DecodeError as e:
        raise InvalidRequest(f"The body is not valid JSON: {e}") from e
    except RecursionError as e:
        raise InvalidRequest("The body is nested too deeply") from e


def decode_within(field: msgspec.Raw, limit: int, param: str) -> Any:
    """The value of a field that may hold anything, None if it is absent or null.

    Raises `InvalidRequest` when it has more than `limit` bytes: to build millions of empty lists takes a second, in
    which nobody else is served.
    """
    text = bytes(field)
    if len(text) > limit:
        raise InvalidRequest(f"{param} is larger than {limit} bytes", param=param)
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError) as e:
        # What is only read now was skipped over before: broken UTF-8 and numbers that are none.
        raise InvalidRequest(f"{param} is not valid: {e}", param=param) from e


def _path(error: str) -> str | None:
    """The field that a msgspec error names."""
    at = re.search(r"`\$\.([^`]+)`", error)
    missing = re.search(r"missing required field `([^`]+)`", error)
    path = [at[1].removesuffix("[...]")] if at else []
    return ".".join(path + ([missing[1]] if missing else [])) or None

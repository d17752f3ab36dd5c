"""Typed look-ups in what a model's files say about it; a wrong value names its key and its file."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.contracts.errors import InvalidRequest

_MISSING: Any = object()


class Fields:
    """A mapping of untrusted values. Every reader raises `InvalidRequest` for one that is absent or no such type."""

    def __init__(self, values: Mapping[str, Any], source: Path, prefix: str = "") -> None:
        self._values = values
        self._source = source
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self._values.get(self._prefix + key) is not None

    def count(self, key: str, default: int = _MISSING) -> int:
        """A whole number from 1 to 2**31."""
        value = self._get(key, default)
        if type(value) is not int or not 1 <= value < 2**31:
            raise self._wrong(key, value, "a positive whole number")
        return value

    def whole(self, key: str, default: int = _MISSING) -> int:
        """A whole number from 0 to 2**31."""
        value = self._get(key, default)
        if type(value) is not int or not 0 <= value < 2**31:
            raise self._wrong(key, value, "a whole number that is not negative")
        return value

    def number(self, key: str, default: float = _MISSING) -> float:
        """A finite number."""
        value = self._get(key, default)
        # A comparison, because math.isfinite fails for whole numbers that no float holds.
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise self._wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = _MISSING) -> str:
        value = self._get(key, default)
        if type(value) is not str:
            raise self._wrong(key, value, "a string")
        return value

    def ids(self, key: str) -> frozenset[int]:
        """Token ids: none, one, or a list of them."""
        value = self._get(key, [])
        ids = value if isinstance(value, list) else [value]
        if not all(type(i) is int and 0 <= i < 2**31 for i in ids):
            raise self._wrong(key, value, "a token id or a list of them")
        return frozenset(ids)

    def wholes(self, key: str, default: Sequence[int]) -> Sequence[int]:
        """A list of whole numbers from 0 to 2**31."""
        if key not in self:
            return default
        value = self._get(key, _MISSING)
        if not isinstance(value, list) or not all(type(v) is int and 0 <= v < 2**31 for v in value):
            raise self._wrong(key, value, "a list of whole numbers that are not negative")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(key, _MISSING)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def texts(self) -> dict[str, str]:
        """All of it, which must be strings."""
        if not all(isinstance(v, str) for v in self._values.values()):
            raise InvalidRequest(f"{self._source}: expected strings only")
        return dict(self._values)

    def token(self, key: str) -> str:
        """A token's text, which may stand alone or in an object as `content`."""
        value = self._get(key, _MISSING)
        return Fields(value, self._source).text("content") if isinstance(value, dict) else self.text(key)

    def named_texts(self, key: str, *, name: str, text: str) -> dict[str, str]:
        """Nothing, a string, which is then called `default`, or a list of objects of a `name` and a `text`."""
        value = self._get(key, [])
        if isinstance(value, str):
            return {"default": value}
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self._wrong(key, value, "a string or a list of objects")
        items = [Fields(v, self._source) for v in value]
        return {item.text(name): item.text(text) for item in items}

    def section(self, key: str) -> "Fields":
        """A nested mapping; empty when absent."""
        value = self._get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(value, self._source)

    def refuse(self, reason: str) -> InvalidRequest:
        """The error to raise for a model that this program cannot run."""
        return InvalidRequest(f"{self._source}: {reason}")

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is not None:
            return value
        if default is _MISSING:
            raise InvalidRequest(f"{self._source}: {self._prefix}{key} is missing")
        return default

    def _wrong(self, key: str, value: object, expected: str) -> InvalidRequest:
        return InvalidRequest(f"{self._source}: {self._prefix}{key} is {value!r:.80}, expected {expected}")


def read_json(path: Path) -> Fields:
    """The fields of a JSON file. Raises `InvalidRequest` when it is absent or holds no object."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as e:
        raise InvalidRequest(f"{path} is missing") from e
    except OSError as e:
        raise InvalidRequest(f"{path} cannot be read: {e}") from e
    except (ValueError, RecursionError) as e:
        raise InvalidRequest(f"{path} is not JSON: {e}") from e
    if not isinstance(values, dict):
        raise InvalidRequest(f"{path} holds no JSON object")
    return Fields(values, path)

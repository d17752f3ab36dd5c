"""Settings from the environment: a frozen dataclass names the variables, their types and their defaults."""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.contracts.errors import InvalidRequest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

_BOOL = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def read(cls: type[C], environ: Mapping[str, str]) -> C:
    """A `cls` whose field `name` comes from PACELINE_NAME. An unset or empty variable gives the default.

    Fields may be int, float (finite), bool, str, Path, a Literal of strings or integers, or one of these or None.
    Raises `InvalidRequest` that names the variable for a wrong value, and for one that is missing.
    """
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for f in fields(cls):
        variable = f"PACELINE_{f.name.upper()}"
        text = environ.get(variable, "")
        if text:
            values[f.name] = _parse(variable, text, hints[f.name])
        elif f.default is MISSING and f.default_factory is MISSING:
            raise InvalidRequest(f"{variable} is not set", param=variable)
    return cls(**values)


def _parse(variable: str, text: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (k for k in get_args(kind) if k is not types.NoneType)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    try:
        if choices:
            return next(c for c in choices if str(c) == text)
        if kind is bool:
            return _BOOL[text.lower()]
        value = kind(text)
        if kind is float and not math.isfinite(value):
            raise ValueError(text)
    except (KeyError, StopIteration, ValueError):
        wanted = " or ".join(str(c) for c in choices) or kind.__name__
        raise InvalidRequest(f"{variable}={text!r} is not {wanted}", param=variable) from None
    return value

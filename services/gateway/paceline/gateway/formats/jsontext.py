"""JSON as it comes: values passed on as they were written, and calls that are objects with a name and arguments.

Nothing here recurses or looks at a character twice, so that neither depth nor length of arguments matters.
"""

import json
import re
from typing import Any, Literal, TypeAlias

from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import BLANKS, Sink, Source, Steps, drop

Kind: TypeAlias = Literal["object", "array", "string", "number", "integer", "boolean", "null"]

_NO_BRACKET = re.compile(r'[^"{}\[\]]*')
_IN_STRING = re.compile(r'[^"\\]*')
_IN_SCALAR = re.compile(r'[^,:{}\[\]"\s]*')
_SEPARATORS = re.compile(f"[{BLANKS},]*")
_ARGUMENTS = ("arguments", "parameters")
_MEMBERS = (*_ARGUMENTS, "name", "type", "id")


def value(source: Source, sink: Sink) -> Steps[bool]:
    """Passes one value on. False if the answer ends first, or there is none."""
    char = yield from source.peek()
    if char in ("{", "["):
        return (yield from composite(source, sink))
    if char == '"':
        return (yield from string(source, sink))
    yield from source.through(_IN_SCALAR, sink)
    return not source.exhausted


def composite(source: Source, sink: Sink) -> Steps[bool]:
    """Passes an object or an array on, up to the bracket that closes it. False if the answer ends first."""
    depth = 0
    while char := (yield from source.peek()):
        if char == '"':
            yield from string(source, sink)
        elif char in "{}[]":
            sink((yield from source.take(1)))
            depth += 1 if char in "{[" else -1
            if depth == 0:
                return True
        else:
            yield from source.through(_NO_BRACKET, sink)
    return False


def string(source: Source, sink: Sink) -> Steps[bool]:
    """Passes a string on, up to its closing quote. False if the answer ends first."""
    sink((yield from source.take(1)))
    while char := (yield from source.peek()):
        if char == '"':
            sink((yield from source.take(1)))
            return True
        if char == "\\":
            sink((yield from source.take(2)))
        else:
            yield from source.through(_IN_STRING, sink)
    return False


def arguments(source: Source, out: Output, name: str, *, end: str) -> Steps[bool]:
    """The arguments of a call to `name`: an object, or none at all, and `end`, which may be missing.

    False, with nothing consumed but whitespace, where there is something else."""
    yield from source.blanks()
    empty = (yield from source.peek()) != "{"
    if empty and not source.exhausted and not (yield from source.accept(end)):
        return False
    out.begin(name)
    if empty:
        out.arguments("" if source.exhausted else "{}")
    else:
        source.forget()
        yield from composite(source, out.arguments)
        yield from source.blanks()
        yield from source.accept(end)
    return True


def call(source: Source, out: Output, *, needs_arguments: bool = False) -> Steps[bool]:
    """An object with the members "name" and "arguments" or "parameters", in any order and among others.

    False, and nothing in `out`, where there is something else; what was consumed is in the source's record.
    `needs_arguments` where an object may be an answer in JSON: it is a call only with arguments, and when nothing
    else is in it."""
    if not (yield from source.accept("{")):
        return False
    name: str | None = None
    held: str | None = None
    while (key := (yield from _key(source))) is not None:
        if needs_arguments and key not in _MEMBERS:
            return False
        if key in _ARGUMENTS and name and (yield from source.peek()) == "{":
            out.begin(name)
            source.forget()
            yield from composite(source, out.arguments)
            while (yield from _key(source)) is not None:
                yield from value(source, drop)
            yield from source.accept("}")
            return True
        written: list[str] = []
        yield from value(source, written.append)
        if key == "name":
            name = _decoded("".join(written))
        elif key in _ARGUMENTS:
            held = "".join(written)
    closed = yield from source.accept("}")
    if not name or not (closed or source.exhausted) or (held is None and needs_arguments):
        return False
    text = _object(held) if closed else held or ""
    if text is None:
        return False
    source.forget()
    out.begin(name)
    out.arguments(text)
    return True


def kind(text: str) -> Kind | None:
    """The type of the JSON value that `text` is, or None if it is none, or nested too deeply to tell."""
    try:
        return _KINDS[type(_DECODER.decode(text))]
    except (ValueError, RecursionError):
        return None


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _key(source: Source) -> Steps[str | None]:
    """Consumes the next key of an object and its colon; None where there is none."""
    yield from source.through(_SEPARATORS, drop)
    if (yield from source.peek()) != '"':
        return None
    written: list[str] = []
    yield from string(source, written.append)
    yield from source.blanks()
    if not (yield from source.accept(":")):
        return None
    yield from source.blanks()
    return _decoded("".join(written)) or ""


def _decoded(text: str) -> str | None:
    """The string that `text` is as JSON; None if it is none."""
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return found if type(found) is str else None


def _object(text: str | None) -> str | None:
    """The JSON text of the object that arguments say, which may be written as a string or left out."""
    if text is None or text == "null":
        return "{}"
    inner = _decoded(text)
    if inner is not None:
        text = inner.strip(BLANKS) or "{}"
    return text if kind(text) == "object" else None


class _Number:
    """Stands for a number, whose digits may be too many to convert."""

    def __init__(self, text: str) -> None:
        pass


class _Integer(_Number):
    pass


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_Integer, parse_float=_Number, parse_constant=_refuse)
_KINDS: dict[type, Kind] = {
    dict: "object",
    list: "array",
    str: "string",
    _Number: "number",
    _Integer: "integer",
    bool: "boolean",
    type(None): "null",
}

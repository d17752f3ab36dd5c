"""Literals as Python writes them, to JSON. They may be nested in any depth, as nothing here recurses."""

import re

from paceline.gateway.formats.jsontext import quoted
from paceline.gateway.formats.source import BLANKS, Sink, Source, Steps
from paceline.gateway.formats.values import ANY, PYTHON_WORDS, STRING, Arguments

_IN_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_IN_WORD = re.compile(r"""[^\s,:\[\]{}()"']*""")
_OPENING = {"[": "[", "(": "[", "{": "{"}
_CLOSING = {"]": "]", ")": "]", "}": "}"}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def argument(source: Source, written: Arguments, key: str) -> Steps[None]:
    """The value of a keyword. A string is read as another type where the tool's schema knows no string there."""
    if (yield from source.peek()) in _IN_STRING:
        declared = written.declared(key)
        written.begin(key, STRING if "string" in declared else declared)
        complete = yield from string(source, written.piece)
    else:
        written.begin(key, ANY - STRING)
        complete = yield from _other(source, written.piece)
    written.end(complete=complete)


def string(source: Source, sink: Sink) -> Steps[bool]:
    """Passes on what a string literal says. False if the answer ends first."""
    quote = yield from source.take(1)
    while char := (yield from source.peek()):
        if char == quote:
            yield from source.take(1)
            return True
        if char == "\\":
            sink((yield from _escape(source)))
        else:
            yield from source.through(_IN_STRING[quote], sink)
    return False


def _other(source: Source, sink: Sink) -> Steps[bool]:
    """Passes a literal that is no string on as JSON, up to a comma or a bracket that is not its own. False if the
    answer ends first."""
    depth = 0
    comma = ""
    while char := (yield from source.peek()):
        if char in _CLOSING or (char == "," and depth == 0):
            if depth == 0:
                return True
            sink(_CLOSING[char])
            depth -= 1
            comma = ""
            yield from source.take(1)
        elif char in BLANKS:
            yield from source.blanks()
        elif char == ",":
            comma = ", "  # which Python also allows before a closing bracket
            yield from source.take(1)
        else:
            sink(comma)
            comma = ""
            depth += char in _OPENING
            yield from _item(source, sink, char)
    return False


def _item(source: Source, sink: Sink, char: str) -> Steps[None]:
    """An opening bracket, a colon, a string or a word."""
    if char in _IN_STRING:
        text: list[str] = []
        complete = yield from string(source, text.append)
        sink(quoted("".join(text)) if complete else quoted("".join(text))[:-1])
    elif char in _OPENING or char == ":":
        yield from source.take(1)
        sink(_OPENING.get(char, ": "))
    else:
        word: list[str] = []
        yield from source.through(_IN_WORD, word.append)
        sink(PYTHON_WORDS.get("".join(word), "".join(word)))


def _escape(source: Source) -> Steps[str]:
    """What an escape sequence of Python or JSON stands for; itself where it stands for nothing."""
    written = yield from source.take(2)
    digits = _HEX_DIGITS.get(written[1:])
    if digits is None:
        return _ESCAPES.get(written[1:], written) if len(written) == 2 else ""
    hexadecimal = yield from source.take(digits)
    if len(hexadecimal) < digits:
        return ""
    code = _number(hexadecimal)
    if code is not None and 0xD800 <= code < 0xDC00 and (yield from source.accept("\\u")):
        low = _number((yield from source.take(4))) or 0
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) if 0xDC00 <= low < 0xE000 else 0xFFFD
    if code is None:
        return written + hexadecimal
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"


def _number(hexadecimal: str) -> int | None:
    return int(hexadecimal, 16) if re.fullmatch("[0-9a-fA-F]+", hexadecimal) else None

"""Llama 4: [f(a=1), g(b="x")], as the whole answer or after <|python_start|>."""

import json
import re
from collections.abc import Sequence
from typing import Any

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import fields, python
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family, repeated
from paceline.gateway.formats.jsontext import quoted
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps
from paceline.gateway.formats.values import Arguments, parameters

_BEGIN = "<|python_start|>"
_END = "<|python_end|>"

_OPEN = Markers(_BEGIN, _END)
_IN_NAME = re.compile(r"[\w.-]*")


class Pythonic(Family):
    name = "pythonic"
    markers = (_BEGIN, _END)
    openers = (_BEGIN,)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        out.text((yield from source.blanks()))
        if (yield from source.peek()) == "[":
            source.record()
            if not (yield from self._list(source, out, tools)):
                out.text(source.recorded())
        while marker := (yield from source.until(_OPEN, out.text)):
            if marker == _END:
                out.boundary()
                continue
            source.record(_BEGIN)
            yield from source.blanks()
            if not (yield from self._list(source, out, tools)):
                out.text(source.rejected())

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The template puts quotes around every value and escapes nothing."""
        return [_told(message) for message in super().history(messages)]

    def visible(self, grammar: Grammar, calls: Calls | None, text: str | None) -> str:
        if calls is None:
            return super().visible(grammar, calls, text)

        def field(key: str, schema: Any) -> str:
            return f"{grammar.written(key + '=')} {grammar.json(schema)}"

        def call(callee: Callee) -> str:
            listed = fields.listed(grammar, callee, field)
            return f"{grammar.written(callee.name + '(')} {listed} {grammar.written(')')}"

        any_call = grammar.one_of(map(call, calls.callees))
        block = f"{grammar.written('[')} {repeated(grammar, calls, any_call, ', ')} {grammar.written(']')}"
        if calls.forced:
            return block
        if text is not None:
            return grammar.one_of((text, block))
        plain = r"/\s*([^\s\[](?s:.*))?/"
        tagged = f"{grammar.until(_BEGIN, plain)} {block} ({grammar.written(_END)})?"
        return grammar.one_of((grammar.terminal(plain), block, tagged))

    def _list(self, source: Source, out: Output, tools: ToolUse) -> Steps[bool]:
        """Calls in brackets. False if there is none, and what was consumed is in the source's record."""
        if not (yield from source.accept("[")):
            return False
        yield from source.blanks()
        found = yield from self._call(source, out, tools)
        while found:
            source.record()
            yield from source.blanks()
            if (yield from source.accept("]")):
                source.forget()
                return True
            more = yield from source.accept(",")
            yield from source.blanks()
            if not more or not (yield from self._call(source, out, tools)):
                out.text(source.rejected())
                return True
        return False

    def _call(self, source: Source, out: Output, tools: ToolUse) -> Steps[bool]:
        """NAME(key=value, ...), known for a call by its first key or its end."""
        name = yield from _name(source)
        if not name or not (yield from source.accept("(")):
            return False
        yield from source.blanks()
        key = yield from _name(source)
        known = (yield from _equals(source)) if key else (yield from source.peek()) == ")"
        if not known:
            return False
        source.forget()
        out.begin(name)
        written = Arguments(out, parameters(tools, name))
        while key and known:
            yield from python.argument(source, written, key)
            yield from source.blanks()
            yield from source.accept(",")
            yield from source.blanks()
            key = yield from _name(source)
            known = yield from _equals(source)
        if not source.exhausted:
            written.close()
        yield from source.accept(")")
        return True


def _name(source: Source) -> Steps[str]:
    name: list[str] = []
    yield from source.through(_IN_NAME, name.append)
    return "".join(name)


def _equals(source: Source) -> Steps[bool]:
    yield from source.blanks()
    found = yield from source.accept("=")
    yield from source.blanks()
    return found


def _told(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _escaped(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _escaped(arguments: Any) -> Any:
    if not isinstance(arguments, dict):
        return arguments
    return {key: _inside_quotes(value) for key, value in arguments.items()}


def _inside_quotes(value: Any) -> str:
    return quoted(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))[1:-1]

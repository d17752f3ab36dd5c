"""GLM 4.5 to 5: <tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>, up to 4.6 a line each."""

import re
from collections.abc import Collection
from typing import Any

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import fields
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family, repeated
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps
from paceline.gateway.formats.values import Arguments, parameters

_BEGIN = "<tool_call>"
_END = "</tool_call>"
_KEY = "<arg_key>"
_END_KEY = "</arg_key>"
_VALUE = "<arg_value>"
_END_VALUE = "</arg_value>"

_NAME = re.compile(r"[^\s<>{}\"]+")
_NAME_ENDS = Markers("\n", _KEY, _END)


class Glm(Family):
    """`lines` where the template writes keys and values on lines of their own."""

    def __init__(self, special: Collection[str], *, thinks: bool, lines: bool) -> None:
        super().__init__(special, thinks=thinks)
        self.lines = lines

    name = "glm"
    markers = (_BEGIN, _END, _KEY, _END_KEY, _VALUE, _END_VALUE)
    openers = (_BEGIN,)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while (yield from source.until(Markers(_BEGIN), out.text)):
            source.record(_BEGIN)
            if not (yield from self._call(source, out, tools)):
                out.text(source.rejected())

    def _call(self, source: Source, out: Output, tools: ToolUse) -> Steps[bool]:
        """What follows <tool_call>, False if that is no name."""
        yield from source.blanks()
        written: list[str] = []
        end = yield from source.until(_NAME_ENDS, written.append)
        name = "".join(written).strip()
        if end is None or not _NAME.fullmatch(name):
            return False
        source.unread(end)
        source.forget()
        out.begin(name)
        arguments = Arguments(out, parameters(tools, name))
        yield from source.blanks()
        while (yield from source.accept(_KEY)):
            key: list[str] = []
            yield from source.until(Markers(_END_KEY), key.append)
            yield from source.blanks()
            if not (yield from source.accept(_VALUE)):
                break
            arguments.begin("".join(key).strip())
            end = yield from source.until(Markers(_END_VALUE), arguments.piece)
            arguments.end(complete=end is not None)
            yield from source.blanks()
        if not source.exhausted:
            arguments.close()
        yield from source.accept(_END)
        return True

    def block(self, grammar: Grammar, calls: Calls) -> str:
        line = "\n" if self.lines else ""

        def field(key: str, schema: Any) -> str:
            head = grammar.written(f"{_KEY}{key}{_END_KEY}{line}{_VALUE}")
            return f"{head} {fields.value(grammar, schema, fields.End(_END_VALUE, after=line))}"

        def call(callee: Callee) -> str:
            return f"{grammar.written(callee.name + line)} {fields.sequence(callee, field)} {end}"

        end = grammar.written(_END)
        any_call = grammar.one_of(map(call, calls.callees))
        return repeated(grammar, calls, any_call, line + _BEGIN)

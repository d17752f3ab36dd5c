"""Qwen3-Coder, Qwen3.5: <tool_call><function=N><parameter=P>v</parameter></function></tool_call>, a line each."""

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
_FUNCTION = "<function="
_END_FUNCTION = "</function>"
_PARAMETER = "<parameter="
_END_PARAMETER = "</parameter>"

# The model sometimes leaves <tool_call> out.
_OPEN = Markers(_BEGIN, _FUNCTION)
_NAME_ENDS = Markers(">", "\n")
_VALUE_ENDS = Markers(f"\n{_END_PARAMETER}", _END_PARAMETER)


class Qwen3Coder(Family):
    name = "qwen3_coder"
    markers = (_BEGIN, _END)
    openers = (_BEGIN, _FUNCTION)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while marker := (yield from source.until(_OPEN, out.text)):
            source.record(marker)
            if marker == _BEGIN:
                yield from source.blanks()
            found = marker == _FUNCTION or (yield from source.accept(_FUNCTION))
            if not found or not (yield from self._call(source, out, tools)):
                out.text(source.rejected())

    def _call(self, source: Source, out: Output, tools: ToolUse) -> Steps[bool]:
        """What follows <function=, False if that is no name."""
        name: list[str] = []
        if (yield from source.until(_NAME_ENDS, name.append)) != ">" or not name:
            return False
        source.forget()
        out.begin("".join(name))
        written = Arguments(out, parameters(tools, "".join(name)))
        yield from source.blanks()
        while (yield from source.accept(_PARAMETER)):
            key: list[str] = []
            if not (yield from source.until(Markers(">"), key.append)):
                return True
            written.begin("".join(key))
            yield from source.accept("\n")
            end = yield from source.until(_VALUE_ENDS, written.piece)
            written.end(complete=end is not None)
            yield from source.blanks()
        if not source.exhausted:
            written.close()
        yield from source.accept(_END_FUNCTION)
        yield from source.blanks()
        yield from source.accept(_END)
        return True

    def block(self, grammar: Grammar, calls: Calls) -> str:
        def field(key: str, schema: Any) -> str:
            head = grammar.written(f"{_PARAMETER}{key}>\n")
            return f"{head} {fields.value(grammar, schema, end_parameter)}"

        def call(callee: Callee) -> str:
            head = grammar.written(f"\n{_FUNCTION}{callee.name}>\n")
            return f"{head} {fields.sequence(callee, field)} {end}"

        end_parameter = fields.End(_END_PARAMETER, before="\n", after="\n")
        end = grammar.written(f"{_END_FUNCTION}\n{_END}")
        any_call = grammar.one_of(map(call, calls.callees))
        return repeated(grammar, calls, any_call, f"\n{_BEGIN}")

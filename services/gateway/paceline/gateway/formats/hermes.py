"""Hermes, Qwen2.5, Qwen3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import jsontext
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family, repeated
from paceline.gateway.formats.jsontext import quoted
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps

_BEGIN = "<tool_call>"
_END = "</tool_call>"


class Hermes(Family):
    name = "hermes"
    markers = (_BEGIN, _END)
    openers = (_BEGIN,)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while (yield from source.until(Markers(_BEGIN), out.text)):
            source.record(_BEGIN)
            yield from source.blanks()
            if not (yield from jsontext.call(source, out)):
                out.text(source.rejected())
                continue
            yield from source.blanks()
            yield from source.accept(_END)

    def block(self, grammar: Grammar, calls: Calls) -> str:
        def call(callee: Callee) -> str:
            head = grammar.written('\n{"name": ' + quoted(callee.name) + ', "arguments": ')
            return f"{head} {grammar.json(callee.schema)} {end}"

        end = grammar.written("}\n" + _END)
        any_call = grammar.one_of(map(call, calls.callees))
        return repeated(grammar, calls, any_call, f"\n{_BEGIN}")

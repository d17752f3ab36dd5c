"""Llama 3: {"name": ..., "parameters": {...}}, after <|python_tag|> or as the whole answer; ";" between calls."""

from collections.abc import Sequence
from typing import Any

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import jsontext
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family, repeated
from paceline.gateway.formats.histories import one_call_each
from paceline.gateway.formats.jsontext import quoted
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps

_TAG = "<|python_tag|>"


class Llama3(Family):
    name = "llama3"
    markers = (_TAG,)
    openers = (_TAG,)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        out.text((yield from source.blanks()))
        if (yield from source.peek()) == "{":
            source.record()
            yield from self._objects(source, out, bare=True)
        source.forget()
        while (yield from source.until(Markers(_TAG), out.text)):
            source.record(_TAG)
            yield from source.blanks()
            yield from self._objects(source, out, bare=False)

    def _objects(self, source: Source, out: Output, *, bare: bool) -> Steps[None]:
        """One or more calls. A `bare` object may be an answer in JSON, which has a name but no parameters."""
        while (yield from jsontext.call(source, out, needs_arguments=bare)):
            source.record()
            yield from source.blanks()
            if not (yield from source.accept(";")):
                break
            yield from source.blanks()
        out.text(source.recorded() if bare else source.rejected())

    def visible(self, grammar: Grammar, calls: Calls | None, text: str | None) -> str:
        if calls is None:
            return super().visible(grammar, calls, text)

        def call(callee: Callee) -> str:
            head = grammar.written('{"name": ' + quoted(callee.name) + ', "parameters": ')
            return f"{head} {grammar.json(callee.schema)} {end}"

        end = grammar.written("}")
        objects = repeated(grammar, calls, grammar.one_of(map(call, calls.callees)), "; ")
        if calls.forced:
            return objects
        if text is not None:
            return grammar.one_of((text, objects))
        plain = r"/\s*([^\s{](?s:.*))?/"
        return grammar.one_of((grammar.terminal(plain), objects, f"{grammar.until(_TAG, plain)} {objects}"))

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The template refuses messages with several calls."""
        return list(one_call_each(messages))

"""DeepSeek V3 (a fenced block of JSON) and V3.1 (bare JSON), between special tokens."""
# ruff: noqa: RUF001 - the bars of DeepSeek's markers are not those of ASCII

from collections.abc import Collection

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import jsontext
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family, repeated
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps

_SECTION = "<｜tool▁calls▁begin｜>"
_END_SECTION = "<｜tool▁calls▁end｜>"
_CALL = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_END_CALL = "<｜tool▁call▁end｜>"
_FENCE = "```"

_OPEN = Markers(_SECTION, _CALL, _END_SECTION)
_NAME_ENDS = Markers(_SEPARATOR, _END_CALL, _CALL, _END_SECTION)
_LINE_ENDS = Markers("\n", _END_CALL)


class DeepSeekV3(Family):
    """`fenced` for V3; both are understood."""

    def __init__(self, special: Collection[str], *, thinks: bool, fenced: bool) -> None:
        super().__init__(special, thinks=thinks)
        self.fenced = fenced

    name = "deepseek_v3"
    markers = (_SECTION, _END_SECTION, _CALL, _SEPARATOR, _END_CALL)
    openers = (_SECTION, _CALL)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while marker := (yield from source.until(_OPEN, out.text)):
            if marker != _CALL:
                out.boundary()
                continue
            source.record(_CALL)
            if not (yield from self._call(source, out)):
                out.text(source.rejected())

    def _call(self, source: Source, out: Output) -> Steps[bool]:
        """What follows the marker of a call, False if that is none."""
        written: list[str] = []
        if (yield from source.until(_NAME_ENDS, written.append)) != _SEPARATOR:
            return False
        yield from source.blanks()
        name = "".join(written).strip()
        if not name:
            return False
        if name != "function" or (yield from source.peek()) == "{":
            return (yield from jsontext.arguments(source, out, name, end=_END_CALL))
        written.clear()
        if (yield from source.until(_LINE_ENDS, written.append)) != "\n":
            return False
        yield from source.blanks()
        yield from source.accept(f"{_FENCE}json")
        name = "".join(written).strip()
        found = bool(name) and (yield from jsontext.arguments(source, out, name, end=_FENCE))
        yield from source.blanks()
        yield from source.accept(_END_CALL)
        return found

    def block(self, grammar: Grammar, calls: Calls) -> str:
        def call(callee: Callee) -> str:
            arguments = grammar.json(callee.schema)
            if self.fenced:
                head = f"{_CALL}function{_SEPARATOR}{callee.name}\n{_FENCE}json\n"
                return (
                    f"{grammar.written(head)} {arguments} {grammar.written(f'{newline}{_FENCE}{_END_CALL}')}"
                )
            return f"{grammar.written(_CALL + callee.name + _SEPARATOR)} {arguments} {grammar.written(_END_CALL)}"

        newline = "\n"
        any_call = grammar.one_of(map(call, calls.callees))
        return f"{repeated(grammar, calls, any_call, newline if self.fenced else '')} {grammar.written(_END_SECTION)}"

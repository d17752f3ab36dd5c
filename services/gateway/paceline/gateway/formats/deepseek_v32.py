"""DeepSeek V3.2 and V4: elements invoke and parameter, whose names begin with ｜DSML｜."""
# ruff: noqa: RUF001, RUF002 - the bars of DeepSeek's markers are not those of ASCII

from collections.abc import Collection
from typing import Any

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import fields
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps
from paceline.gateway.formats.values import ANY, STRING, Arguments, parameters

_DSML = "｜DSML｜"
SECTIONS = ("function_calls", "tool_calls")
_INVOKE = f'<{_DSML}invoke name="'
_END_INVOKE = f"</{_DSML}invoke>"
_PARAMETER = f'<{_DSML}parameter name="'
_END_PARAMETER = f"</{_DSML}parameter>"

_OPEN = Markers(_INVOKE, *(f"<{slash}{_DSML}{section}>" for section in SECTIONS for slash in ("", "/")))
_NAME_ENDS = Markers('">', "\n")
_TYPES = {'string="true"': STRING, 'string="false"': ANY - STRING}


class DeepSeekV32(Family):
    """`section` is the element around calls, whose name changed with V4; both are understood."""

    name = "deepseek_v32"
    markers = (_DSML,)

    def __init__(self, special: Collection[str], *, thinks: bool, section: str = SECTIONS[0]) -> None:
        super().__init__(special, thinks=thinks)
        self.section = section
        others = (name for name in SECTIONS if name != section)
        self.openers = (*(f"<{_DSML}{name}>" for name in (section, *others)), _INVOKE)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while marker := (yield from source.until(_OPEN, out.text)):
            if marker != _INVOKE:
                out.boundary()
                continue
            source.record(_INVOKE)
            if not (yield from self._call(source, out, tools)):
                out.text(source.rejected())

    def _call(self, source: Source, out: Output, tools: ToolUse) -> Steps[bool]:
        """What follows the beginning of an invoke, False if that is no name."""
        name: list[str] = []
        if (yield from source.until(_NAME_ENDS, name.append)) != '">' or not name:
            return False
        source.forget()
        out.begin("".join(name))
        written = Arguments(out, parameters(tools, "".join(name)))
        yield from source.blanks()
        while (yield from source.accept(_PARAMETER)):
            key: list[str] = []
            attributes: list[str] = []
            yield from source.until(Markers('"'), key.append)
            if not (yield from source.until(Markers(">"), attributes.append)):
                return True
            written.begin("".join(key), _TYPES.get("".join(attributes).strip()))
            end = yield from source.until(Markers(_END_PARAMETER), written.piece)
            written.end(complete=end is not None)
            yield from source.blanks()
        if not source.exhausted:
            written.close()
        yield from source.accept(_END_INVOKE)
        return True

    def block(self, grammar: Grammar, calls: Calls) -> str:
        def field(key: str, schema: Any) -> str:
            text, other = (
                grammar.written(f'{_PARAMETER}{key}" string="{flag}">') for flag in ("true", "false")
            )
            end = fields.End(_END_PARAMETER, after="\n")
            return grammar.one_of(
                f"{text if is_text else other} {way}" for is_text, way in fields.ways(grammar, schema, end)
            )

        def call(callee: Callee) -> str:
            head = grammar.written(f'\n{_INVOKE}{callee.name}">\n')
            return f"{head} {fields.sequence(callee, field)} {grammar.written(_END_INVOKE)}"

        any_call = grammar.one_of(map(call, calls.callees))
        many = any_call if calls.single else f"{any_call}+"
        end = f"\n</{_DSML}{self.section}>"
        return f"{many} {grammar.written(end)}"

"""Models whose template knows no tools: everything is text."""

from paceline.contracts.errors import InvalidRequest
from paceline.gateway.ask import ToolUse
from paceline.gateway.formats.constraints import Calls
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.lark import ANYTHING, Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Source, Steps, rest


class Plain(Family):
    name = "plain"

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        yield from rest(source, out.text)

    def visible(self, grammar: Grammar, calls: Calls | None, text: str | None) -> str:
        if calls is not None and calls.forced:
            raise InvalidRequest("This model's chat template knows no tools", param="tool_choice")
        return text or grammar.terminal(ANYTHING)

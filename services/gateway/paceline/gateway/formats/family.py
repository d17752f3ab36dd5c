"""What all forms have in common: reasoning first, then text and calls."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from paceline.gateway.ask import Shape, ToolUse
from paceline.gateway.formats.constraints import Calls, any_calls, check_shape, held_calls
from paceline.gateway.formats.interface import Parser
from paceline.gateway.formats.lark import ANYTHING, Grammar
from paceline.gateway.formats.machine import Machine
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps, drop, newlines, rest

THINK = "<think>"
END_THINK = "</think>"
_NEWLINES = r"(/\n{1,2}/)?"


class Family:
    """A `Format`. Subclasses read calls, and say how they are written."""

    name = ""
    markers: Sequence[str] = ()
    """Tokens of the form, whether the tokenizer has them as special ones or not."""
    framed = False
    """Whether text lies between markers as well."""
    openers: Sequence[str] = ()
    """What calls can begin with; a grammar has them begin with the first."""

    def __init__(self, special: Collection[str], *, thinks: bool) -> None:
        """`special` are the special tokens of the model's tokenizer. It `thinks` if its template knows <think>."""
        self.special = special
        self.thinks = thinks

    def parser(self, tools: ToolUse | None, new_id: Callable[[], str], *, thinking: bool) -> Parser | None:
        used = tools if tools is not None and tools.choice != "none" else None
        if used is None and not (self.thinks or thinking or self.framed):
            return None

        def read(source: Source, out: Output) -> Steps[None]:
            yield from self.answer(source, out, used, thinking=thinking)
            yield from rest(source, out.text)

        out = Output(new_id, parallel=used is not None and used.parallel)
        return Machine(read, out, (THINK, END_THINK, *self.markers))

    def grammar(self, tools: ToolUse | None, shape: Shape | None, *, thinking: bool) -> str | None:
        calls = held_calls(tools)
        if calls is not None and calls.forced:
            shape = None
        if calls is None and shape is None:
            return None
        grammar = Grammar(self.special)
        if shape is not None:
            check_shape(shape)
            if calls is None and tools is not None and tools.choice == "auto":
                calls = any_calls(tools)
        return grammar.encode(self.start(grammar, calls, shape, thinking=thinking))

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without empty lists of calls, which templates take for calls."""
        return [
            {key: value for key, value in message.items() if value or key != "tool_calls"}
            for message in messages
        ]

    def answer(self, source: Source, out: Output, tools: ToolUse | None, *, thinking: bool) -> Steps[None]:
        """Reads a whole answer, whose calls are text without `tools`."""
        blanks = yield from source.blanks()
        opened = (self.thinks or thinking) and (yield from source.accept(THINK))
        if opened or thinking:
            if opened:
                yield from newlines(source, drop)
            else:
                out.reasoning(blanks.lstrip("\n"))
            ends = Markers(END_THINK, *(self.openers if tools else ()))
            end = yield from source.until(ends, out.reasoning)
            if end == END_THINK:
                yield from newlines(source, drop)
            elif end is not None:
                source.unread(end)
        else:
            out.text(blanks)
        if tools is not None:
            yield from self.calls(source, out, tools)

    def start(self, grammar: Grammar, calls: Calls | None, shape: Shape | None, *, thinking: bool) -> str:
        """What a whole answer must look like."""
        if thinking:
            reasoning = f"{grammar.until(END_THINK)} {_NEWLINES}"
        elif self.thinks:
            thought = f"{grammar.written(THINK)} {grammar.until(END_THINK)} {_NEWLINES}"
            reasoning = f"({thought})?"
        else:
            reasoning = ""
        text = None if shape is None else grammar.shape(shape)
        return f"{reasoning} {self.visible(grammar, calls, text)}"

    def visible(self, grammar: Grammar, calls: Calls | None, text: str | None) -> str:
        """What comes after reasoning: `calls`, or `text` of a shape, or anything where that is None."""
        if calls is None:
            return text or grammar.terminal(ANYTHING)
        block = self.block(grammar, calls)
        opener = self.openers[0]
        if calls.forced:
            return f"{_NEWLINES} {grammar.written(opener)} {block}"
        if text is not None:
            return grammar.one_of((text, f"{_NEWLINES} {grammar.written(opener)} {block}"))
        return grammar.one_of((grammar.terminal(ANYTHING), f"{grammar.until(opener)} {block}"))

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        """Reads text and calls. For `answer`, unless a family reads answers in another way."""
        raise NotImplementedError

    def block(self, grammar: Grammar, calls: Calls) -> str:
        """How calls are written after the opener: at least one. For `visible`, unless a family has its own."""
        raise NotImplementedError


def repeated(grammar: Grammar, calls: Calls, call: str, separator: str) -> str:
    """`call`, and more of them after `separator` where more than one may be made."""
    return call if calls.single else f"{call} ({grammar.written(separator)} {call})*"

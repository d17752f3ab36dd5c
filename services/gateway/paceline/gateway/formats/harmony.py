"""gpt-oss: messages in channels. analysis is reasoning, a recipient makes a call, everything else is text."""

import re
from collections.abc import Sequence
from typing import Any

from paceline.gateway.ask import Shape, ToolUse
from paceline.gateway.formats import jsontext
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.histories import one_call_each
from paceline.gateway.formats.lark import ANYTHING, Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Sink, Source, Steps, drop

_CHANNEL = "<|channel|>"
_MESSAGE = "<|message|>"
_START = "<|start|>"
_END = "<|end|>"
_CALL = "<|call|>"
_RETURN = "<|return|>"
_CONSTRAIN = "<|constrain|>"

_BODY = Markers(_MESSAGE)
_BODY_ENDS = Markers(_END, _CALL, _RETURN, _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis")


class Harmony(Family):
    name = "harmony"
    framed = True
    markers = (_CHANNEL, _MESSAGE, _START, _END, _CALL, _RETURN, _CONSTRAIN)

    def answer(self, source: Source, out: Output, tools: ToolUse | None, *, thinking: bool) -> Steps[None]:
        while not source.exhausted:
            header: list[str] = []
            marker = yield from source.until(_BODY, header.append)
            head = "".join(header)
            if marker is None:
                # Without any marker the model left its form; what broke off inside a header is nothing.
                out.text("" if _CHANNEL in head or _START in head else head)
                return
            recipient = _RECIPIENT.search(head)
            sink: Sink = out.reasoning if _ANALYSIS.search(head) else out.text
            if tools is not None and recipient is not None:
                source.record()
                if (yield from jsontext.arguments(source, out, recipient[1], end=_CALL)):
                    sink = drop
                else:
                    sink(source.recorded())
            end = yield from source.until(_BODY_ENDS, sink)
            if end == _CHANNEL:
                source.unread(end)

    def start(self, grammar: Grammar, calls: Calls | None, shape: Shape | None, *, thinking: bool) -> str:
        next_message = grammar.written(f"{_START}assistant")

        def message(channel: str) -> str:
            return f"{grammar.written(f'{_CHANNEL}{channel}{_MESSAGE}')} {grammar.until(_END)} {next_message}"

        def call(callee: Callee) -> str:
            # The model ends its answer with each call.
            head = f"{_CHANNEL}commentary to=functions.{callee.name} {_CONSTRAIN}json{_MESSAGE}"
            return f"{grammar.written(head)} {grammar.json(callee.schema)}"

        reasoning = f"({message('analysis')})*"
        text = grammar.terminal(ANYTHING) if shape is None else grammar.shape(shape)
        final = f"{grammar.written(f'{_CHANNEL}final{_MESSAGE}')} {text}"
        if calls is None:
            return f"{reasoning} {final}"
        any_call = grammar.one_of(map(call, calls.callees))
        if calls.forced:
            return f"{reasoning} {any_call}"
        preamble = "" if shape else f"({message('commentary')})?"
        return f"{reasoning} ({final} | {preamble} {any_call})"

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """One call in each message, and what the model thought under the template's own name."""
        return [_told(message) for message in one_call_each(messages)]


def _told(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning_content")
    if message.get("role") != "assistant" or not reasoning:
        return message
    told = {key: value for key, value in message.items() if key != "reasoning_content"}
    if message.get("tool_calls"):
        # The template has room for one text before a call.
        said = message.get("content")
        return {**told, "thinking": f"{reasoning}\n\n{said}" if said else reasoning, "content": ""}
    return {**told, "thinking": reasoning}

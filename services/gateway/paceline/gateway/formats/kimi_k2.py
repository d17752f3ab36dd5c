"""Kimi K2: a section of calls, each an id functions.NAME:IDX and JSON arguments between special tokens."""

import re
from collections.abc import Sequence
from typing import Any

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats import jsontext
from paceline.gateway.formats.constraints import Callee, Calls
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.lark import Grammar
from paceline.gateway.formats.output import Output
from paceline.gateway.formats.source import Markers, Source, Steps

_SECTION = "<|tool_calls_section_begin|>"
_END_SECTION = "<|tool_calls_section_end|>"
_CALL = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_END_CALL = "<|tool_call_end|>"

_OPEN = Markers(_SECTION, _CALL, _END_SECTION)
_ID_ENDS = Markers(_ARGUMENTS, _END_CALL, _CALL, _END_SECTION)
_ID = re.compile(r"(?:functions\.)?(?P<name>.*?)(?::\d+)?", re.DOTALL)


class KimiK2(Family):
    name = "kimi_k2"
    markers = (_SECTION, _END_SECTION, _CALL, _ARGUMENTS, _END_CALL)
    openers = (_SECTION, _CALL)

    def calls(self, source: Source, out: Output, tools: ToolUse) -> Steps[None]:
        while marker := (yield from source.until(_OPEN, out.text)):
            if marker != _CALL:
                out.boundary()
                continue
            source.record(_CALL)
            written: list[str] = []
            end = yield from source.until(_ID_ENDS, written.append)
            name = _name("".join(written).strip(), tools)
            found = end == _ARGUMENTS and name
            if not found or not (yield from jsontext.arguments(source, out, name, end=_END_CALL)):
                out.text(source.rejected())

    def history(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Calls get the ids that the model was trained on, counted through the conversation."""
        ids: dict[str, str] = {}
        count = 0
        told: list[dict[str, Any]] = []
        for message in super().history(messages):
            if message.get("tool_calls"):
                calls = []
                for call in message["tool_calls"]:
                    ids[call["id"]] = f"functions.{call['function']['name']}:{count}"
                    calls.append({**call, "id": ids[call["id"]]})
                    count += 1
                message = {**message, "tool_calls": calls}
            elif message.get("tool_call_id") in ids:
                message = {**message, "tool_call_id": ids[message["tool_call_id"]]}
            told.append(message)
        return told

    def block(self, grammar: Grammar, calls: Calls) -> str:
        def call(callee: Callee) -> str:
            head = grammar.written(f"{_CALL}functions.{callee.name}:")
            middle = grammar.written(_ARGUMENTS)
            return (
                f"{head} /[0-9]{{1,4}}/ {middle} {grammar.json(callee.schema)} {grammar.written(_END_CALL)}"
            )

        any_call = grammar.one_of(map(call, calls.callees))
        return f"{any_call}{'' if calls.single else '+'} {grammar.written(_END_SECTION)}"


def _name(call_id: str, tools: ToolUse) -> str:
    """The tool's name in an id; a bare counter can only mean the one tool that there is."""
    if call_id.isdecimal() and len(tools.tools) == 1:
        return tools.tools[0].name
    match = _ID.fullmatch(call_id)
    return match["name"] if match else call_id

"""What models say, and what their parsers make of it."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.gateway.ask import Tool, ToolUse
from paceline.gateway.deltas import Answer, Text, ToolCall
from paceline.gateway.formats.deepseek_v3 import DeepSeekV3
from paceline.gateway.formats.deepseek_v32 import DeepSeekV32
from paceline.gateway.formats.family import Family
from paceline.gateway.formats.glm import Glm
from paceline.gateway.formats.harmony import Harmony
from paceline.gateway.formats.hermes import Hermes
from paceline.gateway.formats.kimi_k2 import KimiK2
from paceline.gateway.formats.llama3 import Llama3
from paceline.gateway.formats.pythonic import Pythonic
from paceline.gateway.formats.qwen3_coder import Qwen3Coder

FAMILIES: dict[str, Family] = {
    "hermes": Hermes((), thinks=True),
    "qwen3_coder": Qwen3Coder((), thinks=False),
    "glm": Glm((), thinks=True, lines=False),
    "glm_lines": Glm((), thinks=True, lines=True),
    "kimi_k2": KimiK2((), thinks=True),
    "deepseek_v3": DeepSeekV3((), thinks=True, fenced=True),
    "deepseek_v31": DeepSeekV3((), thinks=True, fenced=False),
    "deepseek_v32": DeepSeekV32((), thinks=True),
    "llama3": Llama3((), thinks=False),
    "pythonic": Pythonic((), thinks=False),
    "harmony": Harmony((), thinks=False),
}

TYPES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "list": {"type": "array", "items": {"type": "number"}},
    "map": {"type": "object"},
    "open": {},
}
TOOLS = ToolUse(
    (
        Tool("f", "Takes one of each.", {"type": "object", "properties": TYPES}),
        Tool("g", None, {"type": "object", "properties": {}}),
    )
)


@dataclass(frozen=True)
class Special:
    """A marker that comes as a special token."""

    token: str


Piece = str | Special


def answer(
    family: Family, pieces: Iterable[Piece], *, tools: ToolUse | None = TOOLS, thinking: bool = False
) -> Answer:
    """What the pieces add up to. Calls are numbered call0, call1, ..."""
    numbers = itertools.count()
    parser = family.parser(tools, lambda: f"call{next(numbers)}", thinking=thinking)
    whole = Answer()
    if parser is None:
        whole.add([Text("".join(piece for piece in pieces if isinstance(piece, str)))])
        return whole
    for piece in pieces:
        whole.add(parser.special(piece.token) if isinstance(piece, Special) else parser.push(piece))
    whole.add(parser.finish())
    return whole


def tokens(family: Family, text: str) -> list[Piece]:
    """`text`, whose markers are special tokens."""
    markers = (*family.markers, "<think>", "</think>")
    split = re.split(f"({'|'.join(map(re.escape, markers))})", text)
    return [Special(part) if part in markers else part for part in split if part]


def cut(pieces: Sequence[Piece], edges: Iterable[int]) -> list[Piece]:
    """The same pieces, whose text is cut at each edge, counted over all of it."""
    found = sorted(edges)
    done: list[Piece] = []
    at = 0
    for piece in pieces:
        if isinstance(piece, Special):
            done.append(piece)
            continue
        inner = [edge - at for edge in found if at < edge < at + len(piece)]
        done += [piece[a:b] for a, b in itertools.pairwise([0, *inner, len(piece)])]
        at += len(piece)
    return done


def said(text: str = "", *calls: tuple[str, str], reasoning: str = "") -> Answer:
    """An answer; calls are (name, arguments)."""
    numbered = [ToolCall(f"call{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return Answer(text=text, reasoning=reasoning, calls=numbered)

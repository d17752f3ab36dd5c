"""The text of a grammar as llguidance's Lark takes it, put together from fragments."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import llguidance

from paceline.gateway.ask import JsonSchema, Regex, Shape
from paceline.gateway.formats import schemas

ANYTHING = "/(?s:.*)/"
_TOKEN = re.compile(r"<[^<>\s]+>")


class Grammar:
    """Rules under construction. Methods return fragments for the right side of a rule."""

    def __init__(self, special: Collection[str]) -> None:
        """`special` are the special tokens, which a grammar has to ask for as tokens."""
        names = sorted((t for t in special if _TOKEN.fullmatch(t)), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self._rules: list[str] = []
        self._parts: list[dict[str, Any]] = []

    def written(self, text: str) -> str:
        """Exactly this text, in which special tokens stand for themselves."""
        fragments: list[str] = []
        at = 0
        for match in self._special.finditer(text):
            fragments += [literal(text[at : match.start()]), match[0]]
            at = match.end()
        fragments.append(literal(text[at:]))
        return " ".join(filter(None, fragments)) or '""'

    def json(self, schema: Any) -> str:
        """JSON that a checked schema accepts."""
        return f"%json {json.dumps(schemas.prepared(schema))}"

    def until(self, end: str, content: str = ANYTHING) -> str:
        """What the terminal `content` matches, up to the first `end` and with it."""
        match = self._special.search(end)
        if match is not None and match.start() == 0:
            return f"{self.terminal(content)} {self.written(end)}"
        plain = end if match is None else end[: match.start()]
        name = self.rule(f"{self.terminal(content)} {literal(plain)}", lazy=True)
        return f"{name} {self.written(end[len(plain) :])}"

    def shape(self, shape: Shape) -> str:
        """Text of this shape, which was checked."""
        if isinstance(shape, JsonSchema):
            return self.json(shape.schema)
        lark = regex_grammar(shape.pattern) if isinstance(shape, Regex) else shape.grammar
        self._parts.append({"name": "shape", "lark_grammar": lark})
        return "@shape"

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of a rule for `body`."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """The name of a terminal for `body`."""
        name = f"T{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def one_of(self, bodies: Iterable[str]) -> str:
        """The name of a rule that allows any of these."""
        return self.rule("\n  | ".join(bodies))

    def encode(self, start: str) -> str:
        """JSON of the whole, whose sentences are those of `start`."""
        lark = "\n".join([f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": lark}, *self._parts]})


def literal(text: str) -> str:
    return json.dumps(text) if text else ""


def regex_grammar(pattern: str) -> str:
    """The Lark grammar of a regex."""
    top = json.loads(llguidance.LLMatcher.grammar_from_regex(pattern))
    lark: str = top["grammars"][0]["lark_grammar"]
    return lark

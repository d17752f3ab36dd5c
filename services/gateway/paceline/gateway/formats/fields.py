"""Grammars of arguments, parameter by parameter in the order of the schema."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.gateway.formats import schemas
from paceline.gateway.formats.constraints import Callee
from paceline.gateway.formats.lark import ANYTHING, Grammar, literal
from paceline.gateway.formats.values import ANY, STRING, resolved, types

# What a text must not begin with to be read as a string where the schema allows other types as well.
_LOOKS_LIKE = {"object": r"{", "array": r"\[", "number": r"\-0-9", "integer": r"\-0-9"}


def members(callee: Callee) -> dict[str, tuple[Any, bool]]:
    """The schema of each parameter and whether it has to be there."""
    properties = callee.schema.get("properties", {})
    required = callee.schema.get("required", [])
    found = {
        key: (schemas.member(callee.schema, key), key in required)
        for key, schema in properties.items()
        if schema is not False
    }
    return found | {key: (True, True) for key in required if key not in properties}


def sequence(callee: Callee, field: Callable[[str, Any], str]) -> str:
    """All parameters, one after the other; `field` makes the fragment of one from its name and schema."""
    return " ".join(
        field(key, schema) if needed else f"({field(key, schema)})?"
        for key, (schema, needed) in members(callee).items()
    )


def listed(grammar: Grammar, callee: Callee, field: Callable[[str, Any], str]) -> str:
    """All parameters with commas between them."""
    comma = literal(", ")
    fragments = [(grammar.rule(field(key, s)), needed) for key, (s, needed) in members(callee).items()]
    first = next((at for at, (_, needed) in enumerate(fragments) if needed), None)
    starts: list[str] = []
    tail = ""
    for at in reversed(range(len(fragments))):
        name, needed = fragments[at]
        if first is None:
            starts.append(f"{name} {tail}")
        elif at == first:
            before = " ".join(f"({optional} {comma})?" for optional, _ in fragments[:at])
            return f"{before} {name} {tail}"
        tail = grammar.rule(f"{comma} {name} {tail}" if needed else f"({comma} {name})? {tail}")
    return f"({' | '.join(starts)})?" if starts else ""


@dataclass(frozen=True, slots=True)
class End:
    """What follows a value: a reader stops at `marker`, but a model writes all three."""

    marker: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        return self.before + self.marker + self.after


def value(grammar: Grammar, schema: Any, end: End) -> str:
    """A value without quotes and its end."""
    return grammar.one_of(fragment for _, fragment in ways(grammar, schema, end))


def ways(grammar: Grammar, schema: Any, end: End) -> list[tuple[bool, str]]:
    """The ways to write a value and its end, and whether each is a string."""
    kinds = types(schema, schema) or ANY
    if kinds == STRING:
        return [(True, fragment) for fragment in _strings(grammar, schema, end)]
    if "string" not in kinds:
        return [(False, f"{grammar.json(schema)} {grammar.written(str(end))}")]
    others = sorted(kinds - STRING)
    rest = {**schema, "type": others} if isinstance(schema, Mapping) else {"type": others}
    unlike = "".join(sorted({_LOOKS_LIKE[kind] for kind in others if kind in _LOOKS_LIKE}))
    text = _text(grammar, end, [rf"/([^\s{unlike}](?s:.*))?/"] if unlike else [])
    return [(True, text), (False, f"{grammar.json(rest)} {grammar.written(str(end))}")]


def _strings(grammar: Grammar, schema: Any, end: End) -> list[str]:
    """The ways to write a string of this schema, with its end."""
    found: list[str] = []
    seen: set[str] = set()
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, Mapping):
            continue
        branches = [*part.get("anyOf", ()), *part.get("oneOf", ()), *part.get("allOf", ())]
        ref = part.get("$ref")
        if isinstance(ref, str) and ref not in seen:
            seen.add(ref)
            branches.append(resolved(ref, schema))
        values = part.get("enum", [part["const"]] if "const" in part else None)
        if values is not None:
            found += [grammar.written(f"{text}{end}") for text in values if isinstance(text, str)]
        elif branches:
            todo += reversed(branches)
        else:
            found.append(_text(grammar, end, _facets(part)))
    return found


def _facets(schema: Mapping[str, Any]) -> list[str]:
    """Terminals that a string must match, all of them."""
    facets: list[str] = []
    if "pattern" in schema:
        facets.append(_search(schema["pattern"]))
    if "minLength" in schema or "maxLength" in schema:
        facets.append(f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/")
    return facets


def _text(grammar: Grammar, end: End, facets: list[str]) -> str:
    """A string without quotes, and its end."""
    content = ANYTHING
    if facets or end.before:
        # A reader takes the first marker for the end.
        without = f"~({ANYTHING} {literal(end.marker)} {ANYTHING})"
        content = " & ".join([ANYTHING, *map(grammar.terminal, facets), without])
    return f"{grammar.until(end.before + end.marker, content)} {grammar.written(end.after)}"


def _search(pattern: str) -> str:
    """The terminal of all texts in which `pattern` is found."""
    begins = pattern.startswith("^")
    ends = pattern.endswith("$") and not pattern.endswith(r"\$")
    inner = pattern[begins : len(pattern) - ends].replace("/", r"\/").replace("\n", r"\n")
    return f"/{'' if begins else '(?s:.*)'}({inner}){'' if ends else '(?s:.*)'}/"

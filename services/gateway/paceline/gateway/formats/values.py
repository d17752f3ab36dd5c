"""Arguments of forms that write values without JSON's quotes: a tool's schema says what a text stands for."""

from collections.abc import Collection, Mapping
from typing import Any, get_args
from urllib.parse import unquote

from paceline.gateway.ask import ToolUse
from paceline.gateway.formats.jsontext import Kind, kind, quoted
from paceline.gateway.formats.output import Output

ANY: frozenset[Kind] = frozenset(get_args(Kind))
STRING: frozenset[Kind] = frozenset({"string"})

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_TYPE_OF: dict[type, Kind] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class Arguments:
    """Writes the arguments of one call, member by member, as a JSON object. Strings go out as they come, other
    values when they are complete."""

    def __init__(self, out: Output, schema: Mapping[str, Any] | None) -> None:
        """`schema` is that of the tool, None for one that the request does not have."""
        self._out = out
        self._schema = schema
        self._types: Collection[Kind] = STRING
        self._written: list[str] = []
        self._separator = "{"

    def begin(self, key: str, types: Collection[Kind] | None = None) -> None:
        """The next member, of the schema's types unless `types` says which."""
        self._types = types or self.declared(key)
        self._out.arguments(f"{self._separator}{quoted(key)}: ")
        self._separator = ", "
        self._written = []
        if self._streams:
            self._out.arguments('"')

    def piece(self, text: str) -> None:
        """More of the member's text."""
        if self._streams:
            self._out.arguments(quoted(text)[1:-1])
        else:
            self._written.append(text)

    def end(self, *, complete: bool) -> None:
        """The member is over, or else the answer."""
        if self._streams:
            self._out.arguments('"' if complete else "")
        elif complete:
            self._out.arguments(_converted("".join(self._written), self._types))
        elif "string" not in self._types:
            self._out.arguments("".join(self._written))

    def declared(self, key: str) -> frozenset[Kind]:
        """The types that the tool's schema gives the member `key`: a string where it does not know it."""
        properties = self._schema.get("properties") if self._schema else None
        if not isinstance(properties, Mapping) or key not in properties:
            return STRING
        return types(properties[key], self._schema) or ANY

    def close(self) -> None:
        self._out.arguments("{}" if self._separator == "{" else "}")

    @property
    def _streams(self) -> bool:
        return self._types == STRING


def parameters(tools: ToolUse, name: str) -> Mapping[str, Any] | None:
    """The schema of the tool `name`, if the request has it."""
    return next((tool.parameters for tool in tools.tools if tool.name == name), None)


def types(schema: Any, root: Any) -> frozenset[Kind]:
    """The JSON types that a schema speaks of; none where it leaves them open. `root` is what its $refs point into."""
    found: set[Kind] = set()
    seen: set[str] = set()
    todo = [schema]
    while todo:
        part = todo.pop()
        if not isinstance(part, Mapping):
            continue
        named = part.get("type")
        found.update(t for t in ANY if t == named or (isinstance(named, list) and t in named))
        if isinstance(part.get("enum"), list):
            found.update(_TYPE_OF[type(v)] for v in part["enum"] if type(v) in _TYPE_OF)
        if type(part.get("const", ...)) in _TYPE_OF:
            found.add(_TYPE_OF[type(part["const"])])
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(part.get(key), list):
                todo += part[key]
        ref = part.get("$ref")
        if isinstance(ref, str) and ref not in seen:
            seen.add(ref)
            todo.append(resolved(ref, root))
    return frozenset(found)


def resolved(ref: str, root: Any) -> Any:
    """What a local $ref points to, or None."""
    if not ref.startswith("#"):
        return None
    at = root
    for step in unquote(ref).removeprefix("#").split("/")[1:]:
        at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at


def _converted(text: str, allowed: Collection[Kind]) -> str:
    """`text` as a JSON value of one of the `allowed` types, and as a string if it is none."""
    word = text.strip()
    word = PYTHON_WORDS.get(word, word)
    found = kind(word)
    if found is None or (found == "string" and "string" in allowed):
        return quoted(text)
    fits = found in allowed or (found == "integer" and "number" in allowed)
    return word if fits or "string" not in allowed else quoted(text)

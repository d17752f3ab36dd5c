"""Lists of module names in configurations of quantized models."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.contracts.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Patterns:
    """Names of modules, any of which may match."""

    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, patterns: Iterable[str], source: Path) -> "Patterns":
        """Raises `InvalidRequest`, naming `source`, for a broken expression.

        A pattern that begins with `re:` is a regular expression for the beginning of a name. Any other is whole parts
        of a name, with everything below them: mlp.gate matches layers.0.mlp.gate, not layers.0.mlp.gate_proj. A star
        in it stands for anything, dots too.
        """
        try:
            return cls(tuple(re.compile(_expression(p)) for p in patterns))
        except re.error as e:
            raise InvalidRequest(f"{source}: {e.pattern!r:.80} is no regular expression: {e}") from e

    def match(self, module: str) -> bool:
        return any(e.match(module) for e in self.expressions)


def _expression(pattern: str) -> str:
    if pattern.startswith("re:"):
        return pattern.removeprefix("re:")
    parts = re.escape(pattern.strip(".")).replace(r"\*", ".*")
    return rf"(?:.*\.)?{parts}(?:\.|$)"

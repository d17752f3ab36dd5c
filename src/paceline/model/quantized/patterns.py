"""Lists of module names in configurations of quantized models."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from paceline.contracts.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Patterns:
    """Names of modules, any of which may match.

    `names` are apart from the expressions because there may be hundreds, beside 70,000 modules: looking for 549 of them
    took 200 us per module as expressions.
    """

    names: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, patterns: Iterable[str], source: Path) -> "Patterns":
        """Raises `InvalidRequest`, naming `source`, for a broken expression.

        A pattern that begins with `re:` is a regular expression for the beginning of a name. Any other is whole parts
        of a name, with everything below them: mlp.gate matches layers.0.mlp.gate, not layers.0.mlp.gate_proj. A star
        in it stands for anything, dots too.
        """
        patterns = tuple(patterns)
        names = frozenset(p.strip(".") for p in patterns if not _is_expression(p))
        return cls(names, tuple(_compile(p, source) for p in patterns if _is_expression(p)))

    def match(self, module: str) -> bool:
        return self._names(module) or any(e.match(module) for e in self.expressions)

    def _names(self, module: str) -> bool:
        if not self.names:
            return False
        parts = module.split(".")
        runs = [".".join(parts[start:stop]) for start, stop in combinations(range(len(parts) + 1), 2)]
        return not self.names.isdisjoint(runs)


def _is_expression(pattern: str) -> bool:
    return pattern.startswith("re:") or "*" in pattern


def _compile(pattern: str, source: Path) -> re.Pattern[str]:
    if pattern.startswith("re:"):
        expression = pattern.removeprefix("re:")
    else:
        expression = r"(?:.*\.)?" + re.escape(pattern.strip(".")).replace(r"\*", ".*") + r"(?:\.|$)"
    try:
        return re.compile(expression)
    except (re.error, RecursionError, OverflowError) as e:
        raise InvalidRequest(f"{source}: {expression!r:.80} is no regular expression: {e}") from e

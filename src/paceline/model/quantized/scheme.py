"""Which modules of a model are quantized, and how."""

from dataclasses import dataclass

from paceline.model.quantized.formats import Format
from paceline.model.quantized.patterns import Patterns


@dataclass(frozen=True, slots=True)
class Rule:
    """The format of the modules that `targets` match."""

    targets: Patterns
    format: Format


@dataclass(frozen=True, slots=True)
class Scheme:
    """The first rule that matches a module counts, unless the module is ignored."""

    rules: tuple[Rule, ...]
    ignored: Patterns

    def format(self, module: str) -> Format | None:
        """How `module`, a linear layer by its name in the files, is stored; None for floating point.

        Checkpoints leave modules in floating point without saying so, the head above all: `open_matrix` looks.
        """
        if self.ignored.match(module):
            return None
        return next((rule.format for rule in self.rules if rule.targets.match(module)), None)

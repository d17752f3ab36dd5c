"""The engine's part of a step: masks before it, log probabilities behind it."""

from dataclasses import dataclass
from typing import TypeAlias

from paceline.engine.interface import Engine, Outcome
from paceline.engine.logprobs import logprobs_of
from paceline.engine.masks import Masking, Masks
from paceline.engine.plan import Plan, Scored
from paceline.engine.sampling import sample
from paceline.engine.sequence import Sequence
from paceline.engine.step import Float32, Int32


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A row of logits, of which a token may be drawn that `mask` allows."""

    logits: Float32
    mask: Int32


Row: TypeAlias = Float32 | Masked | int
"""What came of a wanted row: its logits, or the token that the engine drew, -1 where there is no distribution."""


class StepRunner:
    """Runs plans on `engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._masking = Masking(engine.vocab)

    def run(self, plan: Plan) -> "Float32 | list[Float32 | int] | list[Row]":
        """Of the wanted rows, what `sample_row` takes. Raises whatever the engine raises."""
        masks = self._masking.of(plan.constrained)
        outcome = self._engine.sample(plan.step, plan.samplings, masks)
        for scored in plan.scored:
            _score(scored, outcome)
        return outcome if masks is None else _masked(outcome, masks)


def sample_row(row: Row, sequence: Sequence, position: int) -> int:
    """The token behind `position`, whose log probabilities are noted where they are wanted.

    Raises `ValueError` where the row holds no distribution.
    """
    if isinstance(row, int):
        if row < 0:
            raise ValueError("the largest logit is not finite")
        return row
    logits, mask = (row.logits, row.mask) if isinstance(row, Masked) else (row, None)
    token = sample(logits, sequence.sampling, position, sequence.adjustments, mask)
    if sequence.sampling.logprobs is not None:
        sequence.logprobs.append(logprobs_of(logits, token, sequence.sampling.logprobs))
    return token


def _score(scored: Scored, outcome: Outcome) -> None:
    """Note the log probabilities of prompt tokens."""
    sequence = scored.sequence
    # A step that failed may have come as far, too.
    del sequence.prompt_logprobs[scored.position :]
    for i in range(scored.count):
        logits = outcome[scored.row + i]
        if isinstance(logits, int):
            raise TypeError("the engine drew a token where logits were asked for")
        token = sequence.tokens[scored.position + i + 1]
        sequence.prompt_logprobs.append(logprobs_of(logits, token, sequence.sampling.prompt_logprobs or 0))


def _masked(outcome: Outcome, masks: Masks) -> list[Row]:
    """Masks for the rows that the engine did not draw from."""
    rows: list[Row] = list(outcome)
    for mask, row in zip(masks.bits, masks.rows, strict=True):
        logits = rows[row]
        if not isinstance(logits, int | Masked):
            rows[row] = Masked(logits, mask)
    return rows

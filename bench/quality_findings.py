"""What a variant's scores say beside those of the reference."""

from dataclasses import dataclass
from math import exp
from typing import Literal, TypeAlias

from bench.paired import Bools, Float64, Interval, difference_of_means, difference_of_shares
from bench.quality_tasks import ChoiceScores, WordScores
from bench.quality_text import TextScores

Metric: TypeAlias = Literal[
    "perplexity",
    "mean_kl",
    "max_kl",
    "same_best_token",
    "lambada_perplexity",
    "lambada_accuracy",
    "arc_easy_accuracy",
    "arc_easy_accuracy_per_byte",
]


@dataclass(frozen=True)
class Finding:
    """`value` of a metric over `n` windows, passages or questions.

    Perplexities are of tokens for a text and of words for LAMBADA, and their difference to the reference is relative.
    Divergences are in nats. All else are shares, whose difference is absolute. What is a comparison in itself has no
    difference, nor has the reference.
    """

    metric: Metric
    value: float
    n: int
    difference: Interval | None = None


@dataclass(frozen=True)
class Scores:
    """Of one variant; None for what was not run."""

    text: TextScores
    words: WordScores | None
    choices: ChoiceScores | None


def compare(found: Scores, reference: Scores) -> list[Finding]:
    """Every metric of `found`."""
    divergences = found.text.divergences
    same = float((found.text.best == reference.text.best).mean())
    findings = [
        _perplexity("perplexity", *(scores.text.log_probabilities.mean(1) for scores in (found, reference))),
        Finding("mean_kl", float(divergences.mean()), len(divergences)),
        Finding("max_kl", float(divergences.max()), len(divergences)),
        Finding("same_best_token", same, len(found.text.best)),
    ]
    if found.words is not None and reference.words is not None:
        a, b = found.words, reference.words
        findings += [
            _perplexity("lambada_perplexity", a.log_probabilities, b.log_probabilities),
            _share("lambada_accuracy", a.right, b.right),
        ]
    if found.choices is not None and reference.choices is not None:
        c, d = found.choices, reference.choices
        findings += [
            _share("arc_easy_accuracy", c.right, d.right),
            _share("arc_easy_accuracy_per_byte", c.right_per_byte, d.right_per_byte),
        ]
    return findings


def _perplexity(metric: Metric, found: Float64, reference: Float64) -> Finding:
    """From mean log-probabilities, one for each item. Tokens of a window depend on each other, windows hardly do."""
    difference = difference_of_means(-found, -reference).expm1()
    return Finding(metric, exp(-float(found.mean())), len(found), difference)


def _share(metric: Metric, found: Bools, reference: Bools) -> Finding:
    return Finding(metric, float(found.mean()), len(found), difference_of_shares(found, reference))

"""LAMBADA and ARC-Easy by likelihood, scored as lm-evaluation-harness scores them.

Nothing is generated, and models are given no examples. A dataset is a file of JSON lines:

    lambada_openai.jsonl  {"context", "continuation"}      a passage and its last word
    arc_easy.jsonl        {"query", "choices", "gold"}     a question, its answers and the index of the right one
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.paired import Bools, Float64
from bench.quality_likelihood import Likelihood


@dataclass(frozen=True)
class Item:
    """A text, the continuations it may have, each with its leading space, and which of them is right."""

    context: str
    continuations: tuple[str, ...]
    gold: int = 0


@dataclass(frozen=True)
class WordScores:
    """Of the last words of passages [n]: their log-probabilities, and whether greedy decoding gives them."""

    log_probabilities: Float64
    right: Bools


@dataclass(frozen=True)
class ChoiceScores:
    """Of questions [n]: whether the likeliest answer is right, and the likeliest per byte."""

    right: Bools
    right_per_byte: Bools


def spread(count: int, most: int) -> list[int]:
    """At most `most` indices below `count`, evenly spaced, as neighbours in a data set resemble each other."""
    taken = min(count, most)
    return [i * count // taken for i in range(taken)]


def read_lambada(path: Path) -> list[Item]:
    return [Item(row["context"], (" " + row["continuation"],)) for row in _rows(path)]


def read_arc(path: Path) -> list[Item]:
    return [
        Item(row["query"] + "\nAnswer:", tuple(" " + choice for choice in row["choices"]), row["gold"])
        for row in _rows(path)
    ]


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def score_words(found: Sequence[Sequence[Likelihood]]) -> WordScores:
    """`found` has one continuation for each passage."""
    words = [word for (word,) in found]
    return WordScores(
        np.array([word.log_probability for word in words]), np.array([word.greedy for word in words])
    )


def score_choices(items: Sequence[Item], found: Sequence[Sequence[Likelihood]]) -> ChoiceScores:
    """A longer answer has more to be unlikely by, for which its bytes in UTF-8 stand, without the leading space."""
    right, per_byte = [], []
    for item, choices in zip(items, found, strict=True):
        sums = np.array([choice.log_probability for choice in choices])
        lengths = np.array([len(text.removeprefix(" ").encode()) for text in item.continuations])
        right.append(int(sums.argmax()) == item.gold)
        per_byte.append(int((sums / lengths).argmax()) == item.gold)
    return ChoiceScores(np.array(right), np.array(per_byte))

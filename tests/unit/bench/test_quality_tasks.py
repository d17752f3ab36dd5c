from math import exp
from pathlib import Path

import numpy as np
import pytest

from bench.quality_findings import Scores, compare
from bench.quality_likelihood import Likelihood
from bench.quality_tasks import (
    ChoiceScores,
    Item,
    WordScores,
    read_arc,
    read_lambada,
    score_choices,
    score_words,
    spread,
)
from bench.quality_text import TextScores


def test_a_passage_is_continued_by_its_last_word(tmp_path: Path) -> None:
    path = tmp_path / "lambada.jsonl"
    path.write_text('{"context": "I don\'t care about", "continuation": "signs"}\n')
    assert read_lambada(path) == [Item("I don't care about", (" signs",))]


def test_a_question_asks_for_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "arc.jsonl"
    path.write_text('{"choices": ["red", "blue"], "query": "Question: Which?", "gold": 1}\n')
    assert read_arc(path) == [Item("Question: Which?\nAnswer:", (" red", " blue"), 1)]


def test_words_are_right_where_greedy_decoding_gives_them() -> None:
    scores = score_words([[Likelihood(-1.5, True)], [Likelihood(-0.5, False)]])
    assert scores.log_probabilities.tolist() == [-1.5, -0.5]
    assert scores.right.tolist() == [True, False]


def test_choices_are_right_by_likelihood_or_by_likelihood_per_byte() -> None:
    def found(*sums: float) -> list[Likelihood]:
        return [Likelihood(s, False) for s in sums]

    long = Item("", (" four", " fourfour"), 1)
    umlauts = Item("", (" äää", " aaaaa"), 0)  # six bytes in three characters
    scores = score_choices([long, long, umlauts], [found(-4, -6), found(-7, -6), found(-5.9, -5)])
    assert scores.right.tolist() == [False, True, False]
    assert scores.right_per_byte.tolist() == [True, True, True]


def test_samples_are_spread_over_the_data() -> None:
    assert spread(10, 4) == [0, 2, 5, 7]
    assert spread(3, 10) == [0, 1, 2]
    assert spread(0, 5) == []


def test_findings_are_differences_to_the_reference() -> None:
    windows = np.log(np.full((5, 3), 0.25)) + np.linspace(-1, 1, 5)[:, None]
    best = np.zeros((5, 3), dtype=np.int64)
    other = best.copy()
    other[0, :] = 1
    right = np.arange(5) < 3
    reference = Scores(
        TextScores(windows, best, np.zeros((2, 3))),
        WordScores(np.full(5, -2.0), right),
        ChoiceScores(right, right),
    )
    found = Scores(
        TextScores(windows - 0.01, other, np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])),
        WordScores(np.full(5, -2.1), ~right),
        ChoiceScores(right, np.ones(5, dtype=np.bool_)),
    )
    findings = {finding.metric: finding for finding in compare(found, reference)}

    assert findings["perplexity"].value == pytest.approx(4 * exp(0.01))
    relative = findings["perplexity"].difference
    assert relative is not None
    assert (relative.mean, relative.low, relative.high) == pytest.approx((exp(0.01) - 1,) * 3)
    assert findings["mean_kl"].value == 1
    assert findings["max_kl"].value == 3
    assert findings["same_best_token"].value == pytest.approx(0.8)
    assert findings["lambada_perplexity"].value == pytest.approx(exp(2.1))
    changes = [findings[m].difference for m in ("lambada_accuracy", "arc_easy_accuracy_per_byte")]
    assert [change.mean for change in changes if change] == pytest.approx([-0.2, 0.4])
    assert findings["arc_easy_accuracy"].value == pytest.approx(0.6)


def test_what_was_not_run_is_not_found() -> None:
    text = TextScores(np.zeros((4, 2)), np.zeros((4, 2), dtype=np.int64), np.zeros((1, 2)))
    scores = Scores(text, None, None)
    assert {finding.metric for finding in compare(scores, scores)} == {
        "perplexity",
        "mean_kl",
        "max_kl",
        "same_best_token",
    }

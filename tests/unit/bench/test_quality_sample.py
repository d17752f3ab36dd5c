import json
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from bench.quality_sample import Size, take
from paceline.model.tokenizer import Tokenizer
from tests.unit.model.files import train_tokenizer

SIZE = Size(length=128, windows=5, whole=2, passages=2, questions=3)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False)), frozenset())


def test_without_data_the_prose_of_the_repository_is_predicted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    warnings: list[str] = []
    sample = take(tokenizer, SIZE, tmp_path, None, warnings.append)
    assert warnings == [
        f"{tmp_path}/wikitext2_test.txt is not there: the repository's prose is predicted instead",
        f"{tmp_path}/lambada_openai.jsonl is not there: skipped",
        f"{tmp_path}/arc_easy.jsonl is not there: skipped",
    ]
    assert sample.windows.shape == (5, 128)
    assert sample.lambada is sample.arc is None
    assert sample.pages == 5 * 2
    assert (
        str(sample)
        == "the repository's prose: 5 windows of 128 tokens, 315 of them predicted (KL on 2 windows)"
    )


def test_a_sample_is_spread_over_the_data(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "wikitext2_test.txt").write_text("The quick brown fox. " * 1000)
    passages = [{"context": f"{i} is not", "continuation": "two"} for i in range(6)]
    questions = [{"query": f"Question: {i}?", "choices": ["a", "b"], "gold": i % 2} for i in range(2)]
    (tmp_path / "lambada_openai.jsonl").write_text("\n".join(json.dumps(row) for row in passages))
    (tmp_path / "arc_easy.jsonl").write_text("\n".join(json.dumps(row) for row in questions))
    sample = take(tokenizer, SIZE, tmp_path, None, pytest.fail)
    assert sample.lambada is not None
    assert sample.arc is not None
    assert [item.context for item in sample.lambada.items] == ["0 is not", "3 is not"]
    assert [item.gold for item in sample.arc.items] == [0, 1]
    assert str(sample).endswith("; 2 of 6 passages of LAMBADA; 2 of 2 questions of ARC-Easy")


def test_a_text_that_is_too_short_for_an_interval_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("The quick brown fox. ")
    with pytest.raises(SystemExit, match="the text has 0 windows of 128 tokens, less than 4"):
        take(tokenizer, SIZE, tmp_path, text, pytest.fail)

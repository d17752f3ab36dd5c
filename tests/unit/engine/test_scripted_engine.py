"""The engine that says what a script says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.fake import FakeEngine
from paceline.engine.registry import open_engine
from paceline.engine.scripted import FILE, Line, ScriptedEngine
from paceline.engine.step import Float32, Step
from paceline.model.config import read_config
from paceline.model.files import ModelFiles, locate
from paceline.model.tokenizer import Tokenizer
from tests.clients.model import OPENING, save_scripted

PAGES = 16
LINES = [
    Line("the wind", "It comes from the left."),
    Line("the road", "It goes up.<tool_call>"),
    Line("the bunch", "It rides.", failures=1),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return locate(str(save_scripted(tmp_path_factory.mktemp("models") / "scripted", LINES)))


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(files)


@pytest.fixture
def engine(files: ModelFiles) -> ScriptedEngine:
    return bound(files, np.zeros((PAGES, ScriptedEngine(files).layout.page_bytes), dtype=np.uint8))


def bound(files: ModelFiles, pages: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> ScriptedEngine:
    engine = open_engine("fake", files)
    assert isinstance(engine, ScriptedEngine)
    engine.load(lambda done, total: None)
    engine.bind(pages)
    return engine


def step(tokens: Sequence[int], before: int = 0, parents: Sequence[int] = ()) -> Step:
    """One sequence of `before` positions goes on by `tokens`, of which the last are drafts with `parents`."""
    own = len(tokens) - len(parents)
    positions = list(range(before, before + own))
    for parent in parents:
        positions.append(positions[parent] + 1)
    count = before + len(tokens)
    return Step(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slots=np.arange(before, count)[None],
        parents=np.array([-1] * own + list(parents), dtype=np.int32),
        query_starts=np.array([0, len(tokens)], dtype=np.int32),
        contexts=np.array([count], dtype=np.int32),
        page_table=np.arange(-(-count // PAGE_TOKENS), dtype=np.int32)[None, None],
        logit_rows=np.arange(own - 1, len(tokens), dtype=np.int32),
    )


def prompt(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n{OPENING}"


def said(engine: ScriptedEngine, tokens: list[int], most: int = 40) -> list[int]:
    """Greedily, after `tokens`, to the end."""
    logits = engine.execute(step(tokens))
    answer = []
    for position in range(len(tokens), len(tokens) + most):
        answer.append(int(logits[0].argmax()))
        if answer[-1] in engine.eos_token_ids:
            return answer
        logits = engine.execute(step(answer[-1:], before=position))
    raise AssertionError("the answer has no end")


def test_the_line_whose_cue_came_last_is_said(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    text = prompt("Tell of the wind, and of the road")
    assert said(engine, tokenizer.encode(text)) == [*tokenizer.encode(LINES[1].answer), 1]
    later = f"{text}{LINES[1].answer}<|im_end|>\n{prompt('And the wind?')}"
    assert said(engine, tokenizer.encode(later)) == [*tokenizer.encode(LINES[0].answer), 1]


def test_another_worker_goes_on_from_the_pages_alone(
    engine: ScriptedEngine, files: ModelFiles, tokenizer: Tokenizer
) -> None:
    pages = np.zeros((PAGES, engine.layout.page_bytes), dtype=np.uint8)
    first, second = bound(files, pages), bound(files, pages)
    tokens, answer = tokenizer.encode(prompt("the wind")), tokenizer.encode(LINES[0].answer)
    assert first.execute(step(tokens))[0].argmax() == answer[0]
    assert second.execute(step(answer[:1], before=len(tokens)))[0].argmax() == answer[1]


def test_drafts_see_their_own_branch(engine: ScriptedEngine, tokenizer: Tokenizer) -> None:
    tokens, answer = tokenizer.encode(prompt("the wind")), tokenizer.encode(LINES[0].answer)
    assert len(answer) > 3
    # Two drafts on the script, and beside the second one that leaves it.
    drafts = [answer[0], answer[1], answer[0]]
    assert answer[0] != answer[1]
    root = len(tokens) - 1
    logits = engine.execute(step([*tokens, *drafts], parents=[root, root + 1, root + 1]))
    assert logits.argmax(axis=1).tolist() == [answer[0], answer[1], answer[2], 1]


def test_what_is_in_no_script_is_the_fake_engines(
    engine: ScriptedEngine, files: ModelFiles, tokenizer: Tokenizer
) -> None:
    fake = FakeEngine(read_config(files))
    for text in (prompt("hello"), "the wind"):
        tokens = tokenizer.encode(text)
        assert engine.execute(step(tokens))[0].argmax() == fake.greedy(tokens, 1)[0]


def test_a_wrong_byte_of_kv_changes_the_answer(files: ModelFiles, tokenizer: Tokenizer) -> None:
    pages = np.zeros((PAGES, ScriptedEngine(files).layout.page_bytes), dtype=np.uint8)
    engine = bound(files, pages)
    tokens, answer = tokenizer.encode(prompt("the wind")), tokenizer.encode(LINES[0].answer)

    def after_a_token() -> Float32:
        return engine.execute(step(answer[:1], before=len(tokens)))

    engine.execute(step(tokens))
    assert after_a_token().argmax() == answer[1]
    pages[0, 5] ^= 1
    assert after_a_token().max() < 20.0


def test_the_end_of_a_failing_answer_cannot_be_computed_once(
    engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    tokens, answer = tokenizer.encode(prompt("the bunch")), tokenizer.encode(LINES[2].answer)
    whole = [*tokens, *answer]
    assert engine.execute(step(whole[:-1]))[0].argmax() == answer[-1]
    assert np.isnan(engine.execute(step(whole))[0]).all()
    assert engine.execute(step(whole))[0].argmax() == 1


def test_a_broken_script_is_refused_by_name(files: ModelFiles, tmp_path: Path) -> None:
    directory = save_scripted(tmp_path / "broken", LINES)
    (directory / FILE).write_text('{"opening": "a", "lines": [{"cue": "b"}]}')
    with pytest.raises(InvalidRequest, match=r"script\.json is no script: .*answer.*lines\[0\]"):
        open_engine("fake", locate(str(directory)))

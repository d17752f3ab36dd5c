"""The fake engine: one answer however a sequence is run, another for any wrong byte."""

import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.engine.fake import FakeEngine, kv_of
from paceline.engine.registry import open_engine
from paceline.model.config import Chunk, Span, Window
from tests.unit.engine_torch.steps import Rows, make_step

PROMPT = [int(t) for t in np.random.default_rng(7).integers(0, 512, 150)]
PAGES = [9, 2, 5, 7]
Pool = npt.NDArray[np.uint8]


def start(*, base_s: float = 0.0, token_s: float = 0.0) -> tuple[FakeEngine, Pool]:
    engine = FakeEngine(base_s=base_s, token_s=token_s)
    pool = np.full((12, engine.layout.page_bytes), 0xAB, dtype=np.uint8)
    engine.bind(pool)
    return engine, pool


def next_token(engine: FakeEngine, rows: Rows, moves: list[tuple[int, int]] | None = None) -> int:
    return int(engine.execute(make_step(rows, moves=moves or []))[-1].argmax())


@given(cuts=st.lists(st.integers(1, 149), unique=True, max_size=6).map(sorted))
def test_chunks_do_not_show(cuts: list[int]) -> None:
    engine, _ = start()
    found = [next_token(engine, Rows(PROMPT[a:b], a, PAGES)) for a, b in pairwise([0, *cuts, 150])]
    assert found == [engine.greedy(PROMPT[:b], 1)[0] for b in [*cuts, 150]]


def test_decoding_in_a_batch() -> None:
    engine, _ = start()
    prompts, pages = [PROMPT[:60], PROMPT[:3], PROMPT[90:150]], [[1, 2], [3], [4, 5]]
    step = make_step(*(Rows(t, 0, p) for t, p in zip(prompts, pages, strict=True)))
    logits = engine.execute(step)[step.query_starts[1:] - 1]
    out = [[int(row.argmax())] for row in logits]
    for _ in range(9):
        rows = (Rows(o[-1:], len(t) + len(o) - 1, p) for t, o, p in zip(prompts, out, pages, strict=True))
        for o, row in zip(out, engine.execute(make_step(*rows)), strict=True):
            o.append(int(row.argmax()))
    assert out == [engine.greedy(t, 10) for t in prompts]


def test_draft_tree_and_moves() -> None:
    engine, _ = start()
    next_token(engine, Rows(PROMPT[:62], 0, PAGES))
    tree, parents, depth = [5, 6, 7, 8, 9], [-1, 0, 1, 0, 3], [62, 63, 64, 63, 64]
    branches = [[5], [5, 6], [5, 6, 7], [5, 8], [5, 8, 9]]
    found = engine.execute(make_step(Rows(tree, 62, PAGES, parents, depth))).argmax(axis=1)
    assert found.tolist() == [engine.greedy(PROMPT[:62] + b, 1)[0] for b in branches]
    slot = [PAGES[i // 64] * 64 + i % 64 for i in range(62, 67)]
    moves = [(slot[3], slot[1]), (slot[4], slot[2])]
    assert (
        next_token(engine, Rows([3], 65, PAGES), moves=moves)
        == engine.greedy([*PROMPT[:62], 5, 8, 9, 3], 1)[0]
    )


@given(position=st.integers(0, 148), byte=st.integers(0, 63), bit=st.integers(0, 7))
def test_any_wrong_bit_changes_the_answer(position: int, byte: int, bit: int) -> None:
    """The state behind the logits, not merely the likeliest token, of which there are few."""
    engine, pool = start()
    engine.execute(make_step(Rows(PROMPT[:149], 0, PAGES)))
    last = make_step(Rows(PROMPT[149:], 149, PAGES))
    right = engine.execute(last)
    half, inside = divmod(byte, 32)
    pool[PAGES[position // 64], half * 2048 + position % 64 * 32 + inside] ^= 1 << bit
    assert not np.array_equal(engine.execute(last), right)


def test_exchanged_pages_change_the_answer() -> None:
    engine, pool = start()
    engine.execute(make_step(Rows([4] * 149, 0, PAGES)))
    last = make_step(Rows([4], 149, PAGES))
    right = engine.execute(last)
    pool[PAGES[:2]] = pool[PAGES[1::-1]]
    assert not np.array_equal(engine.execute(last), right)


def test_pages_spell_their_tokens() -> None:
    engine, pool = start()
    engine.execute(make_step(Rows(PROMPT, 0, PAGES)))
    kv = pool.view(np.float32).reshape(12, 2, 64, 8)[PAGES[:3]].swapaxes(1, 2).reshape(-1, 2, 8)[:150]
    assert np.array_equal(kv, kv_of(np.array(PROMPT), np.arange(150)))
    assert kv[:, 0, 0].tolist() == PROMPT
    assert kv[:, 1, 0].tolist() == list(range(150))


@pytest.mark.parametrize("span", [Window(1), Window(70), Chunk(100)], ids=str)
def test_a_span_shows_its_positions_and_no_others(span: Span) -> None:
    engine = FakeEngine(span=span)
    groups = engine.layout.groups
    pool = np.full((24, engine.layout.page_bytes), 0xAB, dtype=np.uint8)
    engine.bind(pool)
    engine.execute(make_step(Rows(PROMPT[:149], 0, PAGES), groups=groups))
    last = make_step(Rows(PROMPT[149:], 149, PAGES), groups=groups)
    right = engine.execute(last)
    assert int(right[0].argmax()) == engine.greedy(PROMPT, 1)[0]
    seen = []
    for position in range(149):
        page = pool[2 * PAGES[position // 64] + 1].view(np.float32).reshape(2, 64, 8)
        page[0, position % 64, 3] += 1
        if not np.array_equal(engine.execute(last), right):
            seen.append(position)
        page[0, position % 64, 3] -= 1
    assert seen == list(range(groups[1].first_visible(149), 149))


@pytest.mark.parametrize("span", [Window(1), Window(2), Window(63), Chunk(64)], ids=str)
def test_a_draft_tree_across_the_edge_of_a_span(span: Span) -> None:
    engine = FakeEngine(span=span)
    groups = engine.layout.groups
    engine.bind(np.full((24, engine.layout.page_bytes), 0xAB, dtype=np.uint8))
    engine.execute(make_step(Rows(PROMPT[:62], 0, PAGES), groups=groups))
    branches = [[5], [5, 6], [5, 6, 7], [5, 8], [5, 8, 9]]
    rows = Rows([5, 6, 7, 8, 9], 62, PAGES, [-1, 0, 1, 0, 3], [62, 63, 64, 63, 64])
    found = engine.execute(make_step(rows, groups=groups)).argmax(axis=1)
    assert found.tolist() == [engine.greedy(PROMPT[:62] + b, 1)[0] for b in branches]


def test_only_wanted_rows_and_no_end() -> None:
    engine, _ = start()
    logits = engine.execute(make_step(Rows(PROMPT, 0, PAGES)))
    assert logits.shape == (150, 512)
    assert logits.dtype == np.float32
    assert not set(logits.argmax(axis=1).tolist()) & engine.eos_token_ids


def test_latency() -> None:
    engine, _ = start(base_s=0.02, token_s=0.001)
    began = time.monotonic()
    engine.execute(make_step(Rows(PROMPT[:30], 0, PAGES)))
    assert 0.05 <= time.monotonic() - began < 0.5


def test_opens_by_name() -> None:
    engine = open_engine("fake", None)
    assert (engine.name, engine.layout.page_bytes, engine.vocab) == ("fake", 4096, 512)
    assert engine.fingerprint == FakeEngine().fingerprint != FakeEngine(vocab=100).fingerprint
    with pytest.raises(RuntimeError, match="before bind"):
        engine.execute(make_step(Rows([1], 0, [0])))

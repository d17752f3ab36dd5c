"""What a GPU needs besides kernels, on a CPU that plays one: pages of the engine's own, and arrays in one copy."""

import numpy as np
import pytest
import torch

from paceline.engine.torch.engine import TorchEngine
from paceline.engine.torch.step_rows import most_drafts, part, step_rows
from paceline.engine.torch.upload import Array, pack, packed_bytes, unpack
from paceline.engine.torch.visibility import visible
from paceline.model.config import Chunk, Span, Window
from tests.unit.engine_torch.models import Reference, load_engine, save_model
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import assert_same, prompt

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_model("llama", tmp_path_factory.mktemp("llama"))


def test_pages_reach_the_bound_memory_and_come_from_it_when_told(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TorchEngine, "in_place", False)
    first, second = load_engine(llama.files), load_engine(llama.files)
    host = np.full((4, first.layout.page_bytes), 0x7F, dtype=np.uint8)
    first.bind(host)
    tokens = prompt(100)
    first.execute(make_step(Rows(tokens[:90], 0, [2, 1])))
    assert (host == 0x7F).all()
    first.export_pages([1])
    assert (host[[0, 2, 3]] == 0x7F).all()
    first.export_pages([2])
    second.bind(host)
    second.import_pages([1, 2])
    host[:] = 0x7F
    found = second.execute(make_step(Rows(tokens[90:], 90, [2, 1])))
    assert_same(found, llama.logits(tokens)[90:])


def test_arrays_travel_as_one() -> None:
    arrays: list[Array] = [
        np.arange(5, dtype=np.int32),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        np.empty((0, 4), dtype=np.int32),
        np.array([0.5, 2.0]),
    ]
    packed = torch.empty(packed_bytes(arrays), dtype=torch.uint8)
    pack(arrays, packed)
    for found, array in zip(unpack(packed, arrays), arrays, strict=True):
        assert np.array_equal(found.numpy(), array)
        assert found.numpy().dtype == array.dtype
        assert found.is_contiguous()


TREE = [-1, 0, 0, 2, 2, 4]
SPANS: list[Span | None] = [None, Window(6), Window(70), Chunk(5), Chunk(64)]


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_rows_see_what_plain_attention_shows_them(span: Span | None) -> None:
    """Chunks, single rows and drafts that look back less far than their ancestors."""
    step = make_step(
        Rows([1] * 9, 60, [1, 2]),
        Rows([1], 130, [3, 4, 5]),
        Rows([1] * 6, 62, [6, 7], TREE, [62, 63, 63, 64, 64, 65]),
        Rows([1], 0, [8]),
    )
    (rows,) = step_rows(step, [span], CPU)
    assert (rows.longest, rows.sequences, rows.count) == (9, 4, 17)
    for s in range(4):
        own = slice(int(step.query_starts[s]), int(step.query_starts[s + 1]))
        positions = np.arange(int(step.contexts[s]))
        expected = visible(step, [s], positions, span)[0]
        assert rows.draft_base is not None
        assert rows.ancestors is not None
        bits = (positions - int(rows.draft_base[s])).clip(-1, 62)
        drafted = (bits >= 0) & ((rows.ancestors[own].numpy()[:, None] >> bits.clip(0)) & 1 > 0)
        first, last = rows.first[own].numpy()[:, None], rows.last[own].numpy()[:, None]
        found = ((positions >= first) & (positions <= last)) | drafted
        assert np.array_equal(found, expected)


def test_some_sequences_of_a_step() -> None:
    step = make_step(
        Rows([1] * 3, 5, [1]), Rows([1] * 6, 62, [6, 7], TREE, [62, 63, 63, 64, 64, 65]), Rows([1], 9, [2])
    )
    assert most_drafts(step) == 5
    chosen, index = part(step, np.array([1, 2]))
    assert index.tolist() == [3, 4, 5, 6, 7, 8, 9]
    alone = make_step(Rows([1] * 6, 62, [6, 7], TREE, [62, 63, 63, 64, 64, 65]), Rows([1], 9, [2]))
    for name in ("positions", "parents", "query_starts", "contexts", "page_table"):
        assert np.array_equal(getattr(chosen, name), getattr(alone, name))


def test_a_step_without_drafts_says_so() -> None:
    step = make_step(Rows([1], 9, [2]), Rows([1], 70, [3, 4]))
    (rows,) = step_rows(step, [None], CPU)
    assert rows.ancestors is None
    assert rows.single
    assert most_drafts(step) == 0

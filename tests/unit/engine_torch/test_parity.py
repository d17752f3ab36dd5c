"""The engine's logits are transformers' logits, however a prompt is cut, batched and paged."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from paceline.engine.interface import Engine
from tests.unit.engine_torch.bound import Bound
from tests.unit.engine_torch.models import VOCAB, Reference, save_model
from tests.unit.engine_torch.steps import Rows, make_step

Logits = npt.NDArray[np.float32]


def prompt(length: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(3, VOCAB, length)]


def assert_same(found: Logits, expected: Logits) -> None:
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_whole_prompt(reference: Reference, bound: Bound) -> None:
    tokens = prompt(150)
    found = bound.run(Rows(tokens, 0, [1, 2, 3]))
    assert_same(found, reference.logits(tokens))


def test_chunks_over_shuffled_pages(reference: Reference, bound: Bound) -> None:
    """Chunk borders inside, at and across page borders; pages in no order."""
    tokens, pages = prompt(200), [31, 4, 17, 9]
    cuts = [0, 1, 50, 64, 130, 192, 200]
    found = [bound.run(Rows(tokens[a:b], a, pages)) for a, b in pairwise(cuts)]
    assert_same(np.concatenate(found), reference.logits(tokens))


def test_decode_token_by_token(reference: Reference, bound: Bound) -> None:
    """Past a page border, from a prompt that ends just before it."""
    tokens = prompt(70)
    found = [bound.run(Rows(tokens[:60], 0, [5, 6]))]
    found += [bound.run(Rows(tokens[i : i + 1], i, [5, 6])) for i in range(60, 70)]
    assert_same(np.concatenate(found), reference.logits(tokens))


def test_mixed_batch(reference: Reference, bound: Bound) -> None:
    """A fresh prompt, a chunk, and decoding sequences of very different lengths share a step."""
    lengths = [40, 130, 3, 64, 65, 300, 20, 140]
    starts = [0, 100, 2, 63, 64, 299, 12, 139]
    prompts = [prompt(n, seed=n) for n in lengths]
    pages = [[1], [2, 3, 4], [5], [6], [7, 8], [9, 10, 11, 12, 13], [14], [15, 16, 17]]
    before = [Rows(t[:s], 0, p) for t, s, p in zip(prompts, starts, pages, strict=True) if s]
    bound.run(*before)
    found = bound.run(*(Rows(t[s:], s, p) for t, s, p in zip(prompts, starts, pages, strict=True)))
    assert_same(
        found, np.concatenate([reference.logits(t)[s:] for t, s in zip(prompts, starts, strict=True)])
    )


def test_only_wanted_rows(reference: Reference, bound: Bound) -> None:
    """`logit_rows` picks rows in its own order."""
    tokens = prompt(30)
    found = bound.run(Rows(tokens, 0, [1]), logit_rows=[29, 0, 7])
    assert_same(found, reference.logits(tokens)[[29, 0, 7]])
    assert bound.run(Rows(tokens, 0, [1]), logit_rows=[]).shape == (0, VOCAB)


def test_draft_tree(reference: Reference, bound: Bound) -> None:
    """Each row of a draft tree gives the logits of its branch alone; so does the sequence that goes on with one."""
    tokens = prompt(62)
    #        root(62) - 1 - 2 - 5
    #                 \ 3 - 4
    tree, parents = prompt(6, seed=9), [-1, 0, 1, 0, 3, 2]
    depth = [62, 63, 64, 63, 64, 65]
    branches = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [0, 1, 2, 5]]
    other = prompt(10, seed=3)
    bound.run(Rows(tokens, 0, [8, 2]))

    found = bound.run(Rows(tree, 62, [8, 2], parents, depth), Rows(other, 0, [20]))

    expected = [reference.logits(tokens + [tree[i] for i in branch])[-1] for branch in branches]
    assert_same(found[:6], np.stack(expected))
    assert_same(found[6:], reference.logits(other))

    # Row 4 and its ancestor 3 are accepted: their keys and values move behind row 0 before the next step writes.
    slot = {i: [8, 2][(62 + i) // 64] * 64 + (62 + i) % 64 for i in range(6)}
    moves = [(slot[3], slot[1]), (slot[4], slot[2])]
    accepted = [*tokens, tree[0], tree[3], tree[4]]
    tail = prompt(4, seed=5)
    found = bound.run(Rows(tail, 65, [8, 2]), moves=moves)
    assert_same(found, reference.logits(accepted + tail)[65:])


def test_draft_tree_across_the_end_of_a_chunk(reference: Reference, bound: Bound) -> None:
    """Chunks of 96: drafts behind the border see neither the prompt nor those drafts of their branch before it."""
    tokens = prompt(94)
    tree, parents, depth = prompt(6, seed=4), [-1, 0, 1, 2, 1, 0], [94, 95, 96, 97, 96, 95]
    branches = [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 5]]
    bound.run(Rows(tokens, 0, [8, 2]))
    found = bound.run(Rows(tree, 94, [8, 2], parents, depth))
    assert_same(
        found, np.stack([reference.logits(tokens + [tree[i] for i in branch])[-1] for branch in branches])
    )


def test_draft_tree_behind_a_fresh_prompt(reference: Reference, bound: Bound) -> None:
    """In one step: more rows than a group takes, and not simply causal."""
    tokens, drafts = prompt(40), [11, 12, 13]
    parents, positions = [-1] * 40 + [39, 39, 41], [*range(40), 40, 40, 41]
    found = bound.run(Rows(tokens + drafts, 0, [6], parents, positions))
    branches = [[11], [12], [12, 13]]
    expected = [reference.logits(tokens), *(reference.logits(tokens + b)[-1:] for b in branches)]
    assert_same(found, np.concatenate(expected))


def test_draft_trees_in_one_group(reference: Reference, bound: Bound) -> None:
    """Sequences with equally many rows are attended together; their trees and contexts differ."""
    prompts = [prompt(30, seed=1), prompt(59, seed=2), prompt(62, seed=3)]
    pages = [[3, 30], [4, 31], [5, 32]]
    rows = [prompt(4, seed=10 + i) for i in range(3)]
    trees = [[-1, 0, 0, 2], [-1, -1, -1, -1], [-1, 0, 1, 2]]
    bound.run(*(Rows(t, 0, p) for t, p in zip(prompts, pages, strict=True)))

    def path(parents: list[int], row: int) -> list[int]:
        if parents[row] < 0:
            return list(range(row + 1))
        return [*path(parents, parents[row]), row]

    step_rows, expected = [], []
    for tokens, page, drafts, parents in zip(prompts, pages, rows, trees, strict=True):
        paths = [path(parents, r) for r in range(4)]
        positions = [len(tokens) + len(p) - 1 for p in paths]
        step_rows.append(Rows(drafts, len(tokens), page, parents, positions))
        expected += [reference.logits(tokens + [drafts[i] for i in p])[-1] for p in paths]
    assert_same(bound.run(*step_rows), np.stack(expected))


def test_pages_are_all_that_is_kept(reference: Reference, bound: Bound) -> None:
    """Another engine goes on from a copy of the pages: no state of a sequence lives anywhere else."""
    tokens = prompt(100)
    bound.run(Rows(tokens[:90], 0, [1, 2]))
    moved = np.zeros_like(bound.pages)
    moved[[30, 7]] = bound.pages[[1, 2]]
    found = Bound.load(reference, moved).run(Rows(tokens[90:], 90, [30, 7]))
    assert_same(found, reference.logits(tokens)[90:])


def test_moves_read_before_they_write(engine: Engine) -> None:
    """Two slots can be exchanged."""
    groups = engine.layout.groups
    pages = np.random.default_rng(0).integers(
        0, 60, (4, len(groups), engine.layout.page_bytes), dtype=np.uint8
    )
    engine.bind(pages.reshape(-1, engine.layout.page_bytes))
    before = pages.copy()
    moves = [(5, 70), (70, 5)]
    engine.execute(make_step(Rows([3], 130, [0, 1, 2]), moves=moves, groups=groups))
    for group, offset, plane in engine.layout.planes():
        was, now = (
            p[:, group, offset : offset + plane.bytes].reshape(4, plane.heads, 64, plane.row_bytes)
            for p in (before, pages)
        )
        assert np.array_equal(now[0, :, 5], was[1, :, 6])
        assert np.array_equal(now[1, :, 6], was[0, :, 5])
        assert np.array_equal(now[3], was[3])


def test_shards(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Weights spread over several files by an index."""
    reference = save_model("llama", tmp_path_factory.mktemp("shards"), max_shard_size="60KB")
    assert len(list(reference.directory.glob("*.safetensors"))) > 2
    tokens = prompt(20)
    found = Bound.load(reference).run(Rows(tokens, 0, [1]))
    assert_same(found, reference.logits(tokens))

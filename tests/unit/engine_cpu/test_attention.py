"""Keys and values in pages, and attention over them, at every level of instructions.

Bytes are compared with the torch engine's, values with float64, and one shape of a batch with another bit by bit.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from paceline.contracts.hashing import PAGE_TOKENS
from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.library import PlKv, PlLayer, PlModel, PlStep
from paceline.engine.layout import Plane, PlaneFormat
from paceline.engine.step import Float32, Step
from paceline.engine.torch.kernels.rms_norm.naive import rms_norm
from paceline.engine.torch.planes import PlaneStore, Slots, Table, open_plane
from paceline.engine.torch.rope import Ropes
from paceline.engine.torch.visibility import visible
from paceline.model.config import Rope
from paceline.model.floats import decode_bfloat16, decode_e4m3
from paceline.model.rope import inverse_frequencies
from tests.unit.engine_cpu.native import SHIMS, build

UInt8 = npt.NDArray[np.uint8]
Float64 = npt.NDArray[np.float64]

FORMATS: dict[PlaneFormat, PlKv] = {
    "float32": PlKv.F32,
    "bfloat16": PlKv.BF16,
    "e4m3": PlKv.E4M3,
    "e4m3_scaled": PlKv.E4M3_SCALED,
}
K_SCALE, V_SCALE = 0.013, 0.021
UNUSED_BYTES = 64
"""Before the plane in each page: what another layer would have there."""


@pytest.fixture
def native(level: Level) -> ctypes.CDLL:
    return build(SHIMS / "attention.cpp", level)


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    format: PlaneFormat
    rope_dim: int = 0
    interleaved: bool = False

    @property
    def plane(self) -> Plane:
        return Plane(0, "kv", 2 * self.kv_heads, self.dim, self.format)

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim


class Machine:
    """A layer of a model on the native kernels, over a pool that holds NaN wherever nothing was written."""

    def __init__(self, native: ctypes.CDLL, shape: Shape, pages: int, norms: Sequence[Float32] = ()) -> None:
        self.native = native
        self.shape = shape
        self.pool: UInt8 = np.full((pages, UNUSED_BYTES + shape.plane.bytes), 0xFF, np.uint8)
        self.norms = [np.ascontiguousarray(norm) for norm in norms]
        frequencies, scale = (
            inverse_frequencies(Rope(theta=10000.0, dim=shape.rope_dim)) if shape.rope_dim else ([], 1.0)
        )
        self.frequencies = np.array(frequencies, np.float32)
        self.layer = PlLayer(k_scale=1.0, v_scale=1.0, plane=UNUSED_BYTES)
        if shape.format == "e4m3":
            self.layer.k_scale, self.layer.v_scale = K_SCALE, V_SCALE
        if norms:
            self.layer.q_norm, self.layer.k_norm = (norm.ctypes.data for norm in self.norms)
        self.model = PlModel(
            layers=1,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.dim,
            rope_dim=shape.rope_dim,
            rope_interleaved=shape.interleaved,
            kv=FORMATS[shape.format],
            eps=1e-6,
            rope_scale=scale,
            rope_frequencies=self.frequencies.ctypes.data,
            layer=ctypes.pointer(self.layer),
        )

    @property
    def pages(self) -> tuple[Any, ...]:
        count, page_bytes = self.pool.shape
        return (ctypes.c_void_p(self.pool.ctypes.data), ctypes.c_int64(count), ctypes.c_int64(page_bytes))

    def store(self, step: Step, qkv: Float32) -> None:
        """Stores the keys and values of `qkv` [T, width] and makes its queries ready."""
        _, of_c = as_c(step)
        self.native.store_rows(
            ctypes.byref(self.model), ctypes.byref(of_c), 0, *self.pages, ctypes.c_void_p(qkv.ctypes.data)
        )

    def attend(self, step: Step, qkv: Float32, threads: int = 1) -> Float32:
        """[T, heads, dim]"""
        _, of_c = as_c(step)
        out = np.full((len(step.tokens), self.shape.heads, self.shape.dim), np.nan, np.float32)
        items = self.native.attend(
            ctypes.byref(self.model),
            ctypes.byref(of_c),
            0,
            *self.pages,
            ctypes.c_void_p(qkv.ctypes.data),
            ctypes.c_void_p(out.ctypes.data),
            threads,
        )
        assert items >= self.shape.kv_heads * step.sequences
        return out

    def run(self, step: Step, qkv: Float32, threads: int = 1) -> Float32:
        qkv = qkv.copy()
        self.store(step, qkv)
        return self.attend(step, qkv, threads)

    def copy(self, source: int, target: int) -> None:
        self.native.copy_slots(
            ctypes.byref(self.model), *self.pages, ctypes.c_int64(source), ctypes.c_int64(target)
        )

    def torch_plane(self) -> PlaneStore:
        """The torch engine's view of the same bytes."""
        return open_torch_plane(self.pool, self.shape)


def open_torch_plane(pool: UInt8, shape: Shape) -> PlaneStore:
    scale = None
    if shape.format == "e4m3":
        scales = [K_SCALE] * shape.kv_heads + [V_SCALE] * shape.kv_heads
        scale = torch.tensor(scales)[:, None, None]
    return open_plane(torch.from_numpy(pool), UNUSED_BYTES, shape.plane, scale)


def as_c(step: Step) -> tuple[Step, PlStep]:
    """`step` keeps alive what the other points to."""
    return step, PlStep(
        tokens_count=len(step.tokens),
        sequences=step.sequences,
        table_width=step.page_table.shape[-1],
        tokens=step.tokens.ctypes.data,
        positions=step.positions.ctypes.data,
        slots=step.slots[0].ctypes.data,
        parents=step.parents.ctypes.data,
        query_starts=step.query_starts.ctypes.data,
        contexts=step.contexts.ctypes.data,
        page_table=step.page_table[0].ctypes.data,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence has in a step: `rows` behind `before` positions, of which the last are drafts.

    `tree` has the parent of each draft, counted from the first one; -1 is the row before it.
    """

    before: int
    rows: int
    tree: tuple[int, ...] = ()


def make_step(parts: Sequence[Part], seed: int = 0) -> Step:
    """Pages of all sequences are scattered over a pool of `pages_of(parts)`."""
    generator = np.random.default_rng(seed)
    contexts = np.array([part.before + part.rows for part in parts], np.int32)
    starts = np.cumsum([0, *(part.rows for part in parts)]).astype(np.int32)
    counts = [-(-context // PAGE_TOKENS) for context in contexts]
    table = np.zeros((1, len(parts), max(counts)), np.int32)
    pages = iter(generator.permutation(pages_of(parts)).tolist())
    parents = np.full(starts[-1], -1, np.int32)
    positions = np.empty(starts[-1], np.int32)
    slots = np.empty((1, starts[-1]), np.int64)
    for s, part in enumerate(parts):
        for i in range(counts[s]):
            table[0, s, i] = next(pages)
        column = np.arange(part.before, contexts[s])
        own = slice(starts[s], starts[s + 1])
        slots[0, own] = (
            table[0, s, column // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + column % PAGE_TOKENS
        )
        positions[own] = column
        first = starts[s + 1] - len(part.tree)
        for i, parent in enumerate(part.tree):
            parents[first + i] = first + parent
            positions[first + i] = positions[first + parent] + 1
    return Step(
        tokens=np.zeros(starts[-1], np.int32),
        positions=positions,
        slots=slots,
        parents=parents,
        query_starts=starts,
        contexts=contexts,
        page_table=table,
        logit_rows=np.empty(0, np.int32),
    )


def pages_of(parts: Sequence[Part]) -> int:
    """One more than all sequences need together."""
    return 1 + sum(-(-(part.before + part.rows) // PAGE_TOKENS) for part in parts)


def random_rows(shape: Shape, rows: int, seed: int) -> Float32:
    """[rows, width]"""
    values: Float32 = np.random.default_rng(seed).standard_normal((rows, shape.width), np.float32)
    values[:, : shape.heads * shape.dim] *= 2.0  # attention that looks at a few keys rather than at all
    return values


def fill(machine: Machine, parts: Sequence[Part], step: Step, seed: int) -> None:
    """Keys and values of what lies before the step."""
    for s, part in enumerate(parts):
        if not part.before:
            continue
        column = np.arange(part.before)
        page = step.page_table[0, s, column // PAGE_TOKENS].astype(np.int64)
        own = one_sequence(step, s, column, page * PAGE_TOKENS + column % PAGE_TOKENS)
        machine.store(own, random_rows(machine.shape, part.before, seed + s))


def one_sequence(step: Step, s: int, positions: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]) -> Step:
    """A step of sequence `s` alone that has rows at `positions`, the last of its context."""
    return Step(
        tokens=np.zeros(len(positions), np.int32),
        positions=positions.astype(np.int32),
        slots=np.ascontiguousarray(slots[None]),
        parents=np.full(len(positions), -1, np.int32),
        query_starts=np.array([0, len(positions)], np.int32),
        contexts=np.array([positions[-1] + 1], np.int32),
        page_table=np.ascontiguousarray(step.page_table[:, s : s + 1]),
        logit_rows=np.empty(0, np.int32),
    )


def reference(machine: Machine, step: Step, qkv: Float32) -> Float64:
    """Attention in float64 to what the torch engine reads from the same pages: [T, heads, dim]"""
    shape = machine.shape
    plane = machine.torch_plane()
    out = np.empty((len(step.tokens), shape.heads, shape.dim))
    queries = qkv[:, : shape.heads * shape.dim].reshape(-1, shape.heads, shape.dim).astype(np.float64)
    for s in range(step.sequences):
        context = int(step.contexts[s])
        own = slice(int(step.query_starts[s]), int(step.query_starts[s + 1]))
        pages = step.page_table[0, s, : -(-context // PAGE_TOKENS)].astype(np.int64)
        kv = plane.gather(Table(torch.from_numpy(pages[None])), torch.float32)[0, :, :context].numpy()
        seen = visible(step, [s], np.arange(context), None)[0]
        for h in range(shape.heads):
            head = h * shape.kv_heads // shape.heads
            keys, values = kv[head].astype(np.float64), kv[shape.kv_heads + head].astype(np.float64)
            scores = queries[own, h] @ keys.T / np.sqrt(shape.dim)
            weights = np.exp(np.where(seen, scores, -np.inf) - scores.max())
            weights /= weights.sum(axis=-1, keepdims=True)
            out[own, h] = weights @ values
    return out


SHAPES = [
    Shape(2, 2, 16, "bfloat16"),
    Shape(3, 1, 24, "e4m3"),
    Shape(9, 3, 64, "e4m3"),
    Shape(9, 3, 64, "bfloat16"),
    Shape(9, 3, 64, "e4m3_scaled"),
    Shape(4, 1, 80, "float32"),
    Shape(7, 1, 128, "e4m3_scaled"),
    Shape(14, 2, 40, "e4m3"),
    Shape(2, 1, 256, "float32"),
]

# A chain, then a root with two children, of which the second has two.
CHAIN = (-1, 0, 1, 2)
TREE = (-1, 0, 0, 2, 2)

BATCHES = {
    "pages": [Part(before, 1) for before in (0, 62, 63, 64, 65, 127)],
    "segments": [Part(before, 1) for before in (510, 511, 512, 1023, 1024)],
    "chunks": [Part(0, 70), Part(61, 5), Part(500, 30), Part(0, 1)],
    "trees": [
        Part(60, 5, CHAIN),
        Part(62, 6, TREE),
        Part(200, 7, TREE),
        Part(508, 6, TREE),
        Part(510, 5, CHAIN),
    ],
    "one_long": [Part(2100, 1)],
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_that_of_float64(native: ctypes.CDLL, shape: Shape, batch: str) -> None:
    parts = BATCHES[batch]
    step = make_step(parts)
    machine = Machine(native, shape, pages_of(parts))
    fill(machine, parts, step, seed=1)
    qkv = random_rows(shape, len(step.tokens), seed=100)

    found = machine.run(step, qkv, threads=2)

    with np.errstate(invalid="ignore"):  # the reference reads what nobody sees, too
        expected = reference(machine, step, qkv)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES[2:8], ids=str)
def test_a_chunk_is_its_rows_bit_by_bit(native: ctypes.CDLL, shape: Shape) -> None:
    """Whether rows come one by one, some at a time or all at once, over pages and a segment."""
    chunk = Part(470, 75)
    step = make_step([chunk])
    qkv = random_rows(shape, chunk.rows, seed=7)
    whole, cut = (Machine(native, shape, pages_of([chunk])) for _ in range(2))
    for machine in (whole, cut):
        fill(machine, [chunk], step, seed=3)

    expected = whole.run(step, qkv)

    begin = 0
    for rows in (1, 1, 2, 3, 1, 5, 1, 11, 18, 1, 31):
        own = slice(begin, begin + rows)
        part = one_sequence(step, 0, np.arange(470 + begin, 470 + begin + rows), step.slots[0, own])
        assert_bits(cut.run(part, qkv[own]), expected[own])
        begin += rows
    assert begin == chunk.rows
    np.testing.assert_array_equal(whole.pool, cut.pool)


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[4], SHAPES[7]], ids=str)
def test_threads_and_company_change_no_bit(native: ctypes.CDLL, shape: Shape) -> None:
    """One long sequence is cut by segments for several threads; beside others it is not."""
    long = Part(1700, 3)
    together = [long, *BATCHES["trees"], Part(0, 40), *BATCHES["pages"]]
    step = make_step(together)
    machine = Machine(native, shape, pages_of(together))
    fill(machine, together, step, seed=5)
    qkv = random_rows(shape, len(step.tokens), seed=8)
    expected = machine.run(step, qkv)

    for threads in (2, 3, 4):
        assert_bits(machine.attend(step, qkv, threads), expected)
    alone = one_sequence(step, 0, np.arange(1700, 1703), step.slots[0, :3])
    for threads in (1, 2, 3, 4):
        assert_bits(machine.attend(alone, qkv[:3], threads), expected[:3])


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[4], SHAPES[7]], ids=str)
@pytest.mark.parametrize("before", [60, 200, 508])
def test_a_branch_of_a_tree_is_the_path_decoded_bit_by_bit(
    native: ctypes.CDLL, shape: Shape, before: int
) -> None:
    """Accepted drafts are exactly what decoding token by token would have given."""
    tree = Part(before, 6, TREE)
    path = [0, 1, 3, 5]  # the root's row, and a branch whose drafts do not lie together
    step = make_step([tree])
    qkv = random_rows(shape, tree.rows, seed=9)
    drafted, decoded = (Machine(native, shape, pages_of([tree])) for _ in range(2))
    for machine in (drafted, decoded):
        fill(machine, [tree], step, seed=4)

    found = drafted.run(step, qkv)

    for depth, row in enumerate(path):
        position = np.array([before + depth])
        alone = one_sequence(step, 0, position, step.slots[0, depth : depth + 1])
        assert_bits(decoded.run(alone, qkv[[row]])[0], found[row])
    for depth, row in enumerate(path):
        drafted.copy(int(step.slots[0, row]), int(step.slots[0, depth]))
    last = one_sequence(step, 0, np.array([before + 4]), step.slots[0, 4:5])
    one_more = random_rows(shape, 1, seed=10)
    assert_bits(drafted.run(last, one_more), decoded.run(last, one_more))


@pytest.mark.parametrize("stored_as", FORMATS)
@pytest.mark.parametrize("dim", [24, 64])
def test_stored_bytes_are_those_of_the_torch_engine(
    native: ctypes.CDLL, stored_as: PlaneFormat, dim: int
) -> None:
    shape = Shape(3, 3, dim, stored_as)
    part = Part(30, 150)
    step = make_step([part])
    qkv = random_rows(shape, part.rows, seed=11)
    # Of NaN in bfloat16, torch itself has two forms.
    extremes = [0.0, -0.0, 1e-12, -1e-9, 447.9, 448.0, 465.0, -1e6, 3e38, -np.inf, 2**-9, 2**-10, 1.5 * 2**-9]
    qkv[:100] *= np.logspace(-6, 6, 100, dtype=np.float32)[:, None]
    if stored_as != "e4m3_scaled":
        qkv[100, -len(extremes) :] = extremes
    if stored_as == "e4m3":
        qkv[100, -1] = np.nan
    qkv[101] = 0.0
    machine = Machine(native, shape, pages_of([part]))
    expected = machine.pool.copy()
    rows = torch.from_numpy(qkv[:, 3 * dim :].copy()).view(part.rows, 6, dim)
    open_torch_plane(expected, shape).write(Slots.of(step.slots[0], torch.device("cpu")), rows)

    machine.store(step, qkv)

    np.testing.assert_array_equal(machine.pool, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rope_dim", [16, 40, 64])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_normed_and_turned_as_the_torch_engine_does(
    native: ctypes.CDLL, interleaved: bool, rope_dim: int, normed: bool
) -> None:
    shape = Shape(6, 2, 64, "float32", rope_dim, interleaved)
    part = Part(8000, 50)
    step = make_step([part])
    qkv = random_rows(shape, part.rows, seed=12)
    norms = list(np.random.default_rng(13).uniform(0.5, 1.5, (2, 64)).astype(np.float32)) if normed else []
    machine = Machine(native, shape, pages_of([part]), norms)
    heads = torch.from_numpy(qkv.copy()).view(part.rows, -1, 64)
    if normed:
        heads[:, :6] = rms_norm(heads[:, :6], torch.from_numpy(norms[0]), 1e-6)
        heads[:, 6:8] = rms_norm(heads[:, 6:8], torch.from_numpy(norms[1]), 1e-6)
    rope = Rope(theta=10000.0, dim=rope_dim, interleaved=interleaved)
    ropes = Ropes([rope], torch.device("cpu"), torch.float32)
    ropes.at(torch.from_numpy(step.positions))[rope].apply_(heads[:, :8])

    machine.store(step, qkv)

    pages = torch.from_numpy(step.page_table[0, :1].astype(np.int64))
    stored = machine.torch_plane().gather(Table(pages), torch.float32)[0, :, 8000:8050].transpose(0, 1)
    np.testing.assert_allclose(qkv.reshape(part.rows, -1, 64)[:, :6], heads[:, :6], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(stored, heads[:, 6:], rtol=1e-5, atol=1e-5)


def test_exponentials_are_accurate_to_a_rounding(native: ctypes.CDLL) -> None:
    x = np.linspace(-87.3, 88.0, 160_000, dtype=np.float32)
    y = np.empty_like(x)
    native.exponentials(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), len(x))
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=2e-7)

    special = np.array([-np.inf, -1e30, -88.0, 0.0, 89.0, np.inf, np.nan, -0.0] * 2, np.float32)
    found = np.empty_like(special)
    native.exponentials(
        ctypes.c_void_p(special.ctypes.data), ctypes.c_void_p(found.ctypes.data), len(special)
    )
    top = y[-1]
    np.testing.assert_array_equal(found, np.array([0, 0, 0, 1, top, top, np.nan, 1] * 2, np.float32))


def test_lanes_are_added_by_halves(native: ctypes.CDLL) -> None:
    row = np.random.default_rng(14).standard_normal(native.lanes()).astype(np.float32)
    native.sum.restype = ctypes.c_float
    found = native.sum(ctypes.c_void_p(row.ctypes.data))
    while len(row) > 1:
        row = row[: len(row) // 2] + row[len(row) // 2 :]
    assert found == row[0]


@pytest.mark.parametrize("e4m3", [False, True])
def test_every_code_is_widened_exactly(native: ctypes.CDLL, e4m3: bool) -> None:
    if e4m3:
        codes = np.arange(256, dtype=np.uint8)
        expected = decode_e4m3(codes)
        expected[[0x7F, 0xFF]] = (480.0, -480.0)  # attention does not look for NaN
    else:
        bits = np.arange(65536, dtype=np.uint16)
        codes, expected = bits.view(np.uint8), decode_bfloat16(bits)
    memory = np.concatenate((np.full(64, 0xFF, np.uint8), codes))
    found, apart = np.empty((2, len(expected)), np.float32)
    source = ctypes.c_void_p(memory.ctypes.data + 64)
    native.widened(e4m3, source, len(expected), *(ctypes.c_void_p(out.ctypes.data) for out in (found, apart)))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(apart, expected)


def assert_bits(found: Float32, expected: Float32) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))

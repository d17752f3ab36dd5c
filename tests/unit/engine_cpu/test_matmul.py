"""Products with packed matrices, at every level of instructions.

Codes are random in all their range. Values are compared with float64 on the same quantised activations, batches of one
shape with those of another bit by bit.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.library import PlFormat, PlMatrix
from tests.unit.engine_cpu.native import SHIMS, build

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

BLOCK, GROUP = 16, 32
TOLERANCE = 1e-5
"""Of the sum of magnitudes."""

# The type of scales and minima.
_NUMBERS: dict[PlFormat, type[np.float16] | type[np.float32]] = {
    PlFormat.U4_F16_MIN: np.float16,
    PlFormat.U4_F16: np.float16,
    PlFormat.U4_F32_MIN: np.float32,
    PlFormat.U4_F32: np.float32,
    PlFormat.I8_F16: np.float16,
    PlFormat.I8_F32_MIN: np.float32,
    PlFormat.I8_F32_MIN_16: np.float32,
}
_FLOATS = (PlFormat.BF16, PlFormat.F16, PlFormat.F32)
FORMATS = (*_NUMBERS, *_FLOATS)

ACTIVATION = np.dtype(
    [("codes", "i1", GROUP), ("scale", "f4"), ("sum", "f4"), ("halves", "i2", 2), ("offset", "i4")]
)


class Activations(ctypes.Structure):
    _fields_ = (
        ("columns", ctypes.c_int32),
        ("groups", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
    )


@pytest.fixture
def native(level: Level) -> ctypes.CDLL:
    library = build(SHIMS / "matmul.cpp", level)
    library.bytes_of_block.restype = ctypes.c_int64
    library.bytes_of_block.argtypes = [ctypes.c_int32, ctypes.c_int64]
    library.times_weight.restype = ctypes.c_float
    return library


@dataclass(frozen=True, slots=True)
class Matrix:
    """`packed` is what abi.h says; `values` [rows, columns] are the numbers that it means, rounded as they are read."""

    format: PlFormat
    packed: npt.NDArray[np.uint8]
    values: Float32


def random_matrix(format_: PlFormat, rows: int, columns: int, seed: int = 0) -> Matrix:
    rng = np.random.default_rng(seed)
    if format_ in _FLOATS:
        return pack_floats(format_, rng.standard_normal((rows, columns)).astype(np.float32))
    four_bits = "U4" in format_.name
    codes = rng.integers(0, 16, (rows, columns)) if four_bits else rng.integers(-128, 128, (rows, columns))
    shape = (rows, columns // GROUP * (2 if format_ is PlFormat.I8_F32_MIN_16 else 1))
    scales, minima = rng.uniform(0.001, 0.01, shape), rng.uniform(-0.1, 0.1, shape)
    return pack_codes(format_, codes, scales, minima)


def pack_codes(
    format_: PlFormat, codes: npt.NDArray[np.int64], scales: Float64, minima: Float64 | None = None
) -> Matrix:
    """Scales and minima [rows, groups or half groups], rounded to what the format has."""
    rows, columns = codes.shape
    groups, blocks = columns // GROUP, -(-rows // BLOCK)
    d = scales.astype(_NUMBERS[format_])
    m = None if minima is None or "MIN" not in format_.name else minima.astype(_NUMBERS[format_])

    def blocks_of(numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[rows, groups, ...] to [blocks, groups, ..., 16 rows], rows behind the last one 0."""
        numbers = numbers.reshape(rows, groups, -1)
        numbers = np.concatenate(
            [numbers, np.zeros((blocks * BLOCK - rows, *numbers.shape[1:]), numbers.dtype)]
        )
        return numbers.reshape(blocks, BLOCK, groups, -1).transpose(0, 2, 3, 1)

    if "U4" in format_.name:
        halves = codes.reshape(rows, groups, 2, 16)
        octets = (halves[:, :, 0] | halves[:, :, 1] << 4).astype(np.uint8)
    else:
        octets = codes.astype(np.int8).view(np.uint8)
    # [blocks, groups, octets, 16 rows] to [blocks, groups, j, 16 rows, 4 octets]
    laid = blocks_of(octets)
    laid = laid.reshape(*laid.shape[:2], -1, 4, BLOCK).swapaxes(-1, -2)
    parts = [laid, blocks_of(d)] if m is None else [laid, blocks_of(d), blocks_of(m)]
    packed = np.concatenate(
        [np.ascontiguousarray(part).reshape(blocks * groups, -1).view(np.uint8) for part in parts], axis=1
    )
    offset = 8 if format_ in (PlFormat.U4_F16, PlFormat.U4_F32) else 0
    wide = columns // d.shape[1]
    values = (codes - offset).astype(np.float32) * d.astype(np.float32).repeat(wide, axis=1)
    if m is not None:
        values = values + m.astype(np.float32).repeat(wide, axis=1)
    return Matrix(format_, packed.reshape(-1), values)


def pack_floats(format_: PlFormat, values: Float32) -> Matrix:
    rows, columns = values.shape
    blocks = -(-rows // BLOCK)
    if format_ is PlFormat.BF16:
        values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        stored: npt.NDArray[np.generic] = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif format_ is PlFormat.F16:
        stored = values.astype(np.float16)
        values = stored.astype(np.float32)
    else:
        stored = values
    # Rows and columns behind the last ones are 0; float32 has no pairs of columns.
    padding = columns % 2 if format_ is not PlFormat.F32 else 0
    stored = np.pad(stored, ((0, blocks * BLOCK - rows), (0, padding)))
    width = 1 if format_ is PlFormat.F32 else 2
    laid = stored.reshape(blocks, BLOCK, -1, width).swapaxes(1, 2)
    return Matrix(format_, np.ascontiguousarray(laid).reshape(-1).view(np.uint8), values)


@dataclass(frozen=True, slots=True)
class Input:
    """Rows of activations in both forms; `exact` is what the form that a format reads stands for."""

    values: Float32
    groups: npt.NDArray[np.void]
    factors: Float32

    def exact(self, format_: PlFormat) -> Float64:
        if format_ in _FLOATS:
            return self.values.astype(np.float64)
        codes = self.groups["codes"].astype(np.float64) * self.groups["scale"].astype(np.float64)[..., None]
        return codes.reshape(len(self.values), -1)


def quantised(native: ctypes.CDLL, values: Float32) -> npt.NDArray[np.void]:
    rows, columns = values.shape
    groups = np.zeros((rows, columns // GROUP), ACTIVATION)
    for row in range(rows):
        native.quantise(_pointer(values[row]), columns // GROUP, _pointer(groups[row]))
    return groups


def random_input(native: ctypes.CDLL, rows: int, columns: int, seed: int = 1) -> Input:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    factors = rng.uniform(0.5, 2, rows).astype(np.float32)
    return Input(values, quantised(native, values), factors)


def multiply(
    native: ctypes.CDLL,
    matrix: Matrix,
    in_: Input,
    *,
    rows: tuple[int, int] | None = None,
    row_map: Sequence[int] | None = None,
    bias: Float32 | None = None,
    factors: bool = True,
) -> Float32:
    """All activations, or those that `row_map` names, times rows [begin, end) of the matrix."""
    total, columns = matrix.values.shape
    begin, end = rows or (0, total)
    aligned = np.zeros(matrix.packed.size + 64, np.uint8)
    start = -aligned.ctypes.data % 64
    data = aligned[start : start + matrix.packed.size]
    data[:] = matrix.packed
    w = PlMatrix(
        total, columns, matrix.format, 0, data.ctypes.data, None if bias is None else bias.ctypes.data
    )
    activations = Activations(
        columns,
        None if matrix.format in _FLOATS else in_.groups.ctypes.data,
        in_.values.ctypes.data if matrix.format in _FLOATS else None,
        in_.factors.ctypes.data if factors else None,
    )
    mapped = None if row_map is None else np.array(row_map, np.int32)
    tokens = len(in_.values) if row_map is None else len(row_map)
    # A stride wider than the rows shows what is written beside them.
    out = np.full((tokens, end - begin + 5), np.nan, np.float32)
    native.multiply(
        ctypes.byref(w),
        begin,
        end,
        ctypes.byref(activations),
        None if mapped is None else _pointer(mapped),
        tokens,
        _pointer(out),
        ctypes.c_int64(out.shape[1]),
    )
    assert np.isnan(out[:, end - begin :]).all()
    return out[:, : end - begin]


def _pointer(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def columns_of(format_: PlFormat) -> int:
    """For floats an odd number, and more than products convert at once."""
    return 205 if format_ in _FLOATS else 160


@pytest.mark.parametrize("format_", FORMATS)
def test_product_is_that_of_float64(native: ctypes.CDLL, format_: PlFormat) -> None:
    matrix = random_matrix(format_, 41, columns_of(format_))
    assert native.bytes_of_block(format_, columns_of(format_)) * 3 == matrix.packed.size
    in_ = random_input(native, 19, columns_of(format_))
    bias = np.random.default_rng(2).standard_normal(41).astype(np.float32)
    a, w, factors = (
        in_.exact(format_),
        matrix.values.astype(np.float64),
        in_.factors.astype(np.float64)[:, None],
    )
    allowed = TOLERANCE * (factors * (np.abs(a) @ np.abs(w).T) + np.abs(bias))
    assert (np.abs(multiply(native, matrix, in_, bias=bias) - (factors * (a @ w.T) + bias)) < allowed).all()
    assert (np.abs(multiply(native, matrix, in_, factors=False) - a @ w.T) < allowed / factors).all()


@pytest.mark.parametrize("format_", FORMATS)
def test_a_row_does_not_depend_on_its_batch(native: ctypes.CDLL, format_: PlFormat) -> None:
    matrix = random_matrix(format_, 37, columns_of(format_))
    in_ = random_input(native, 70, columns_of(format_))
    bias = np.random.default_rng(2).standard_normal(37).astype(np.float32)
    alone = np.concatenate([multiply(native, matrix, in_, row_map=[t], bias=bias) for t in range(70)])
    for tokens in (*range(2, 20), 33, 64, 65, 70):
        assert np.array_equal(multiply(native, matrix, in_, row_map=range(tokens), bias=bias), alone[:tokens])
    assert np.array_equal(multiply(native, matrix, in_, bias=bias), alone)
    some = [69, 3, 3, 0, 41, 68, 2]
    assert np.array_equal(multiply(native, matrix, in_, row_map=some, bias=bias), alone[some])
    for begin, end in ((0, 16), (16, 32), (32, 37), (16, 37), (0, 20)):
        part = multiply(native, matrix, in_, rows=(begin, end), bias=bias)
        assert np.array_equal(part, alone[:, begin:end])


@pytest.mark.parametrize("format_", _NUMBERS)
def test_largest_codes_do_not_overflow(native: ctypes.CDLL, format_: PlFormat) -> None:
    """With scales of 1 every product is an integer, and exact."""
    least, most = (0, 15) if "U4" in format_.name else (-128, 127)
    offset = 8 if format_ in (PlFormat.U4_F16, PlFormat.U4_F32) else 0
    signs = np.array([[1] * GROUP, [-1] * GROUP, [1, -1] * (GROUP // 2)])
    codes = np.concatenate(
        [np.full((8, GROUP), least), np.full((8, GROUP), most), np.tile([[least, most]], (8, 16))]
    )
    ones = np.ones((24, 2 if format_ is PlFormat.I8_F32_MIN_16 else 1))
    matrix = pack_codes(format_, codes, ones, 0 * ones)
    in_ = random_input(native, 3, GROUP)
    in_.groups[:] = quantised(native, (127 * signs).astype(np.float32))
    expected = 127 * signs @ (codes - offset).T
    assert np.array_equal(multiply(native, matrix, in_, factors=False), expected.astype(np.float32))


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_are_read_back_exactly(native: ctypes.CDLL, format_: PlFormat) -> None:
    matrix = random_matrix(format_, 21, columns_of(format_))
    w = PlMatrix(*matrix.values.shape, matrix.format, 0, matrix.packed.ctypes.data, None)
    read = np.zeros_like(matrix.values)
    for row in range(21):
        native.dequantise(ctypes.byref(w), row, _pointer(read[row]))
    assert np.array_equal(read, matrix.values)


def test_all_float16_are_read(native: ctypes.CDLL) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)[None]
    matrix = pack_floats(PlFormat.F16, every)
    w = PlMatrix(1, 65536, PlFormat.F16, 0, matrix.packed.ctypes.data, None)
    read = np.zeros_like(every)
    native.dequantise(ctypes.byref(w), 0, _pointer(read))
    assert np.array_equal(read, every, equal_nan=True)


def test_activations_are_rounded_to_nearest(native: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((50, GROUP)) * 10.0 ** rng.uniform(-30, 30, (50, 1))).astype(np.float32)
    values[0] = np.arange(GROUP) - 15.5  # ties
    values[0, 0] = 127
    values[1] = 0
    values[2] = 1e-38
    groups = quantised(native, values)[:, 0]
    most = np.abs(values).max(axis=1, keepdims=True)
    most[1:3] = np.inf
    codes = np.rint(values * (np.float32(127) / most))
    assert np.array_equal(groups["codes"], codes)
    most[1:3] = 0
    scales = (most / np.float32(127))[:, 0]
    assert np.array_equal(groups["scale"], scales)
    assert np.array_equal(groups["halves"], codes.reshape(50, 2, 16).sum(axis=2))
    assert np.array_equal(groups["sum"], scales * codes.sum(axis=1))
    assert np.array_equal(groups["offset"], -8 * codes.sum(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_no_numbers_show(native: ctypes.CDLL, bad: float) -> None:
    values = np.ones((1, 2 * GROUP), np.float32)
    values[0, 37] = bad
    for format_ in _NUMBERS:
        matrix = random_matrix(format_, 16, 2 * GROUP)
        in_ = Input(values, quantised(native, values), np.ones(1, np.float32))
        assert not np.isfinite(multiply(native, matrix, in_)).any()


@pytest.mark.parametrize("count", [1, 7, 8, 16, 19, 32])
def test_swiglu(native: ctypes.CDLL, count: int) -> None:
    rng = np.random.default_rng(4)
    gate = (rng.standard_normal(40) * 20).astype(np.float32)
    gate[0] = -100
    up = rng.standard_normal(40).astype(np.float32)
    expected = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64))) * up
    got = gate.copy()
    native.silu_times(_pointer(got), _pointer(up), count)
    np.testing.assert_allclose(got[:count], expected[:count], rtol=1e-6, atol=1e-36)
    assert np.array_equal(got[count:], gate[count:])


@pytest.mark.parametrize("count", [1, 8, 13, 32])
def test_weigh(native: ctypes.CDLL, count: int) -> None:
    rng = np.random.default_rng(5)
    x, weight = rng.standard_normal((2, 40)).astype(np.float32)
    out = np.full(40, np.nan, np.float32)
    squares = native.times_weight(_pointer(x), _pointer(weight), count, _pointer(out))
    assert np.array_equal(out[:count], x[:count] * weight[:count])
    assert np.isnan(out[count:]).all()
    np.testing.assert_allclose(squares, np.square(x[:count], dtype=np.float64).sum(), rtol=1e-6)

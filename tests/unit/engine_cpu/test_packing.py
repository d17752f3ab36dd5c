"""Packed matrices hold exactly what files say, and codes that are made for them are close."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.cpu.levels import Level
from paceline.engine.cpu.library import PlFormat
from paceline.engine.cpu.packing import Memory, Packable, Packer, Placed
from paceline.engine.cpu.weights import EXACT, exact_format
from paceline.model.floats import Float32, UInt8, decode_bfloat16, encode_bfloat16
from paceline.model.ggml import BLOCK_FORMATS
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.int4_files import CompressedRows
from paceline.model.quantized.nibbles import pack
from paceline.model.safetensors import StoredArray
from paceline.model.stored import StoredTensor
from tests.unit.engine_cpu.native import LEVELS, SHIMS, build

# Where the float16 numbers of a block lie.
_SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q8_K": (),
}
# Rows that end within a block, and more than one piece of a thread.
_SHAPE = (37, 512)


def library(level: Level = "plain") -> ctypes.CDLL:
    return build(SHIMS / "pack.cpp", level)


def packed(
    stored: Packable,
    format_: PlFormat,
    level: Level = "plain",
    threads: int = 1,
    name: str = "t",
    importance: Float32 | None = None,
) -> bytes:
    """All bytes of the packed matrix, which lies between others that must stay untouched."""
    own = Packer(library(level))
    size = own.size(format_, *stored.shape)
    memory = Memory(size + 128)
    memory.array(0, size // 4 + 32)[:] = -7
    own.pack([Placed(name, stored, format_, 64, importance)], memory, threads, lambda done, total: None)
    around = memory.array(0, size // 4 + 32)
    assert (around[:16] == -7).all()
    assert (around[-16:] == -7).all()
    return around[16:-16].tobytes()


def unpack(data: bytes, format_: PlFormat, rows: int, columns: int) -> Float32:
    """float32 [rows rounded up to 16, columns], as abi.h draws the formats."""
    octets = np.frombuffer(data, np.uint8).reshape(-(-rows // 16), -1)
    if format_ is PlFormat.F32:
        return octets.view("<f4").reshape(len(octets), columns, 16).swapaxes(1, 2).reshape(-1, columns)
    if format_ in (PlFormat.BF16, PlFormat.F16):
        pairs = (
            octets.view("<u2").reshape(len(octets), -1, 16, 2).swapaxes(1, 2).reshape(16 * len(octets), -1)
        )
        assert not pairs[:, columns:].any()
        halves = np.ascontiguousarray(pairs[:, :columns])
        return decode_bfloat16(halves) if format_ is PlFormat.BF16 else halves.view("<f2").astype(np.float32)
    return _unpack_groups(octets.reshape(len(octets), columns // 32, -1), format_).reshape(-1, columns)


def _unpack_groups(groups: UInt8, format_: PlFormat) -> Float32:
    """uint8 [blocks, groups, bytes] -> float32 [blocks, rows, groups, 32]"""
    four, zero = format_.name.startswith("U4"), 8 if format_.name in ("U4_F16", "U4_F32") else 0
    scale_type = "<f2" if "F16" in format_.name else "<f4"
    halves = 2 if format_ is PlFormat.I8_F32_MIN_16 else 1
    bytes_ = 256 if four else 512
    words = groups[..., :bytes_].reshape(*groups.shape[:2], -1, 16, 4).swapaxes(2, 3)
    flat = words.reshape(*groups.shape[:2], 16, -1)
    codes = np.concatenate((flat & 15, flat >> 4), axis=-1).astype(np.int8) if four else flat.view(np.int8)
    numbers = np.ascontiguousarray(groups[..., bytes_:]).view(scale_type).astype(np.float32)
    numbers = numbers.reshape(*groups.shape[:2], -1, halves, 16).swapaxes(3, 4)
    values = (codes - np.int8(zero)).astype(np.float32).reshape(*codes.shape[:3], halves, -1)
    values = values * numbers[:, :, 0, ..., None]
    if "MIN" in format_.name:
        values = values + numbers[:, :, 1, ..., None]
    return values.reshape(codes.shape).swapaxes(1, 2)


def blocks(dtype: str, rows: int, columns: int, order: npt.NDArray[np.int64] | None = None) -> StoredTensor:
    """Random blocks, which reach every code."""
    block = BLOCK_FORMATS[dtype]
    rng = np.random.default_rng(len(dtype))
    data = rng.integers(0, 256, (rows, columns // block.values, block.width), np.uint8)
    for offset in _SCALES[dtype]:
        scales = rng.normal(scale=1e-3, size=(*data.shape[:2], 1)).astype(np.float16)
        data[..., offset : offset + 2] = scales.view(np.uint8)
    if dtype == "Q8_K":
        data[..., :4] = rng.normal(size=(*data.shape[:2], 1)).astype(np.float32).view(np.uint8)
    if dtype == "MXFP4":
        # From the smallest, which makes values subnormal, to all that int8 times float32 reaches.
        data[..., 0] %= 250
    return StoredTensor(dtype, (rows, columns), data.reshape(rows, -1), order)


def floats(dtype: str, values: Float32) -> StoredTensor:
    data: npt.NDArray[Any] = values
    if dtype != "F32":
        data = values.astype(np.float16) if dtype == "F16" else encode_bfloat16(values)
    return StoredTensor(dtype, values.shape, np.ascontiguousarray(data).view(np.uint8))


def int4(dtype: str, group: int, symmetric: bool, rows: int = 40, columns: int = 256) -> Int4Matrix:
    rng = np.random.default_rng(group)
    codes = rng.integers(0, 16, (rows, columns), np.uint8)
    scales = floats(dtype, rng.uniform(1e-3, 1e-2, (rows, columns // group)).astype(np.float32))
    views = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    zeros = pack(rng.integers(0, 16, (columns // group, rows), np.uint8)).T
    return Int4Matrix(
        (rows, columns),
        group,
        symmetric,
        dtype,
        CompressedRows(
            StoredArray(Path(), "packed", "I32", pack(codes)),
            StoredArray(Path(), "scales", dtype, scales.data.view(views[dtype])),
            None if symmetric else StoredArray(Path(), "zeros", "I32", zeros),
        ),
    )


def weights(kind: str, rows: int = 64, columns: int = 256) -> Float32:
    """Values as layers have them: with a bell shape, with heavy tails, with a few outliers, all of one sign."""
    rng = np.random.default_rng(5)
    values = {
        "bell": lambda: rng.normal(size=(rows, columns)),
        "tails": lambda: rng.laplace(size=(rows, columns)),
        "outliers": lambda: (
            rng.normal(size=(rows, columns)) * np.where(rng.random((rows, columns)) < 0.01, 20, 1)
        ),
        "shifted": lambda: rng.normal(size=(rows, columns)) + 4,
    }[kind]()
    return (values * 0.02).astype(np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", BLOCK_FORMATS)
def test_blocks_are_kept_exactly(dtype: str, level: Level) -> None:
    """Also the rows that llama.cpp has in another order; what fills up the last block is zero."""
    rows, columns = _SHAPE
    order = np.random.default_rng(0).permutation(rows)
    stored = blocks(dtype, rows, columns, order)
    found = unpack(packed(stored, EXACT[dtype], level), EXACT[dtype], rows, columns)
    assert np.array_equal(found[:rows], stored.float32(0, rows))
    assert not found[rows:].any()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("columns", [64, 45])
def test_floats_are_kept_bit_for_bit(dtype: str, columns: int) -> None:
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (19, columns * (4 if dtype == "F32" else 2)), np.uint8)
    stored = StoredTensor(dtype, (19, columns), data)
    cells = 4 if dtype == "F32" else 2
    found = np.frombuffer(packed(stored, PlFormat[dtype]), np.uint8).reshape(2, -1, 16, 4)
    rows = found.swapaxes(1, 2).reshape(32, -1)
    assert np.array_equal(rows[:19, : columns * cells], data)
    assert not rows[19:].any()
    assert not rows[:, columns * cells :].any()


@pytest.mark.parametrize("level", LEVELS)
def test_floats_are_rounded_to_the_nearest(level: Level) -> None:
    """Ties, subnormal numbers, what overflows, infinities and NaN, and random bits."""
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2**32, (16, 4096), dtype=np.uint32)
    bits[0] = 0x477FE000 + np.arange(4096)  # about the largest float16
    bits[1] = (rng.integers(0x33000000, 0x39000000, 4096) >> 11 << 11).astype(np.uint32)  # ties of subnormals
    bits[2] = (bits[2] & 0x3FFFE000) | 0x1000  # ties of float16
    bits[3] = bits[3] & 0xFFFF0000 | 0x8000  # ties of bfloat16
    values = bits.view(np.float32)
    stored = StoredTensor("F32", values.shape, values.view(np.uint8))
    with np.errstate(over="ignore"):
        expected = {
            PlFormat.BF16: encode_bfloat16(values),
            PlFormat.F16: values.astype(np.float16).view(np.uint16),
        }
    for format_, wanted in expected.items():
        found = np.frombuffer(packed(stored, format_, level), np.uint16).reshape(2048, 16, 2).swapaxes(0, 1)
        numbers = ~np.isnan(values)
        assert np.array_equal(found.reshape(values.shape)[numbers], wanted[numbers])
        assert np.isnan(unpack(found.swapaxes(0, 1).tobytes(), format_, *values.shape)[~numbers]).all()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("group", [32, 64, 256])
@pytest.mark.parametrize("symmetric", [True, False])
def test_int4_is_kept_exactly(dtype: str, group: int, symmetric: bool) -> None:
    """But for zero points with float32 scales: code * d - zero * d is rounded three times, (code - zero) * d once."""
    stored = int4(dtype, group, symmetric)
    format_ = exact_format(stored)
    wanted = PlFormat.U4_F32_MIN if not symmetric else PlFormat.U4_F32 if dtype == "F32" else PlFormat.U4_F16
    assert format_ is wanted
    found = unpack(packed(stored, format_), format_, 40, 256)[:40]
    tolerance = 3 * 15e-2 * 2**-24 if dtype == "F32" and not symmetric else 0
    assert np.abs(found - stored.float32(0, 40)).max() <= tolerance


def test_bfloat16_scales_beyond_float16_stay_float32() -> None:
    stored = int4("BF16", 32, symmetric=True)
    assert isinstance(stored.rows, CompressedRows)
    stored.rows.scales.values[3, 1] = encode_bfloat16(np.array([1e-7], np.float32))[0]
    assert exact_format(stored) is PlFormat.U4_F32
    assert np.array_equal(
        unpack(packed(stored, PlFormat.U4_F32), PlFormat.U4_F32, 40, 256)[:40], stored.float32(0, 40)
    )


@pytest.mark.parametrize("dtype", [*BLOCK_FORMATS, "F16", "BF16"])
def test_any_precision_becomes_any_float(dtype: str) -> None:
    rows, columns = _SHAPE
    stored = (
        floats(dtype, weights("bell", *_SHAPE))
        if dtype in EXACT and "F16" in dtype
        else blocks(dtype, *_SHAPE)
    )
    values = stored.float32(0, rows)
    wide = unpack(packed(stored, PlFormat.F32), PlFormat.F32, rows, columns)[:rows]
    assert np.array_equal(wide, values)
    narrow = unpack(packed(stored, PlFormat.BF16), PlFormat.BF16, rows, columns)[:rows]
    assert np.array_equal(narrow, decode_bfloat16(encode_bfloat16(values)))


def test_threads_share_a_matrix() -> None:
    """Pieces begin where they belong, in the file's order and in another; bytes are the same with any threads."""
    order = np.random.default_rng(0).permutation(9000)
    for stored, format_ in (
        (blocks("Q4_1", 9000, 512, order), PlFormat.U4_F16_MIN),
        (int4("BF16", 32, symmetric=False, rows=12000), PlFormat.U4_F32_MIN),
        (floats("BF16", weights("bell", 2000, 512)), PlFormat.BF16),
    ):
        rows, columns = stored.shape
        assert Packer(library()).size(format_, rows, columns) > 2_000_000  # three pieces
        found = packed(stored, format_, threads=4)
        assert np.array_equal(unpack(found, format_, rows, columns)[:rows], stored.float32(0, rows))
        assert packed(stored, format_, threads=1) == found


KINDS = ("bell", "tails", "outliers", "shifted")


def relative_error(found: Float32, wanted: Float32) -> float:
    return float(np.linalg.norm(found[: len(wanted)] - wanted) / np.linalg.norm(wanted))


def nearest(values: Float32, d: Float32, m: Float32, least: int, most: int) -> Float32:
    """What the nearest codes give for groups [..., 32]; d and m are rounded to float16."""
    d, m = (x.astype(np.float16).astype(np.float32) for x in (d, m))
    found: Float32 = np.clip(np.rint((values - m) / d), least, most) * d + m
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_four_bits_beat_the_range_of_each_group(kind: str) -> None:
    """By 6% at least, which is 12% of the squared error."""
    values = weights(kind, 256, 1024)
    groups = values.reshape(256, -1, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    simple = relative_error(nearest(groups, (high - low) / 15, low, 0, 15).reshape(values.shape), values)
    found = unpack(packed(floats("F32", values), PlFormat.U4_F16_MIN), PlFormat.U4_F16_MIN, *values.shape)
    assert relative_error(found, values) < 0.94 * simple


@pytest.mark.parametrize("kind", KINDS)
def test_four_bits_err_where_inputs_are_small(kind: str) -> None:
    """Inputs that differ as those of layers do, by a factor of ten and more, and a few that are silent."""
    values = weights(kind, 256, 1024)
    importance = np.exp(2 * np.random.default_rng(3).normal(size=1024)).astype(np.float32)
    importance[::50] = 1e-12
    stored = floats("F32", values)
    errors = [
        float(((unpack(data, PlFormat.U4_F16_MIN, *values.shape) - values) ** 2 @ importance).sum())
        for data in (packed(stored, PlFormat.U4_F16_MIN, importance=w) for w in (importance, None))
    ]
    assert errors[0] < 0.75 * errors[1]
    alike = packed(stored, PlFormat.U4_F16_MIN, importance=np.ones(1024, np.float32))
    assert alike == packed(stored, PlFormat.U4_F16_MIN)


@pytest.mark.parametrize("largest", [1e3, 1e12, 1e30])
def test_one_input_may_count_more_than_float32_can_add(largest: float) -> None:
    values = weights("bell")
    importance = np.ones(256, np.float32)
    importance[::32] = largest
    found = unpack(
        packed(floats("F32", values), PlFormat.U4_F16_MIN, importance=importance),
        PlFormat.U4_F16_MIN,
        *values.shape,
    )
    assert relative_error(found[:, ::32], values[:, ::32]) < 0.08
    assert relative_error(found, values) < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bits_are_the_nearest_codes(kind: str) -> None:
    values = weights(kind)
    groups = values.reshape(64, -1, 32)
    d = np.abs(groups).max(-1, keepdims=True) / 127
    simple = nearest(groups, d, np.zeros_like(d), -127, 127).reshape(values.shape)
    found = unpack(packed(floats("F32", values), PlFormat.I8_F16), PlFormat.I8_F16, *values.shape)
    assert relative_error(found, values) <= relative_error(simple, values) * 1.0001


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format_", [PlFormat.U4_F16_MIN, PlFormat.I8_F16])
def test_codes_are_the_same_on_every_level(format_: PlFormat, level: Level) -> None:
    stored = floats("BF16", weights("tails"))
    assert packed(stored, format_, level) == packed(stored, format_, "plain")


def test_what_four_bits_hold_comes_back_exactly() -> None:
    """Codes 0 to 15, groups of one value, zeros."""
    stored = blocks("Q4_1", 48, 256)
    groups = stored.data.reshape(48, -1, 20)
    groups[..., 1] &= 0x7F  # of negative scales the minimum would be the largest value
    groups[..., 4] = 0xF0
    groups[:, 0, 4:] = 0x77
    groups[3] = 0
    values = stored.float32(0, 48)
    found = unpack(packed(floats("F32", values), PlFormat.U4_F16_MIN), PlFormat.U4_F16_MIN, 48, 256)
    assert np.array_equal(found[:, 32:], values[:, 32:])
    assert np.allclose(found[:, :32], values[:, :32], rtol=2**-11, atol=2**-25)


@pytest.mark.parametrize("format_", [PlFormat.U4_F16_MIN, PlFormat.I8_F16])
@pytest.mark.parametrize("scale", [0, 1e-43, 1e-36, 1e-9, 1e-4, 1e-2, 1e5])
def test_values_of_any_size_are_stored(format_: PlFormat, scale: float) -> None:
    """Float16 scales have steps of 2^-24, which 127 codes multiply."""
    values = weights("bell", 16, 64) * np.float32(scale)
    found = unpack(packed(floats("F32", values), format_), format_, 16, 64)
    assert np.isfinite(found).all()
    assert np.abs(found - values).max() <= np.abs(values).max() / 5 + 128 * 2**-25


@pytest.mark.parametrize("format_", [PlFormat.U4_F16_MIN, PlFormat.I8_F16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_values_that_no_codes_stand_for_are_refused_by_name(format_: PlFormat, bad: float) -> None:
    values = weights("bell", 32, 64)
    values[17, 40] = bad
    with pytest.raises(InvalidRequest, match=r"^layers\.3\.up has values that are not finite or too large"):
        packed(floats("F32", values), format_, name="layers.3.up")


def test_formats_that_codes_are_not_made_for_are_refused() -> None:
    for stored, format_ in (
        (floats("F32", weights("bell")), PlFormat.U4_F16),
        (blocks("Q4_K", 16, 256), PlFormat.I8_F32_MIN),
        (int4("BF16", 32, symmetric=True), PlFormat.U4_F32_MIN),
        (int4("BF16", 32, symmetric=False), PlFormat.U4_F32),
    ):
        with pytest.raises(ValueError, match=rf"^t, stored as .* cannot become {format_.name}"):
            packed(stored, format_)

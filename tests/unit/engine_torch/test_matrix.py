"""Maps multiply as their stored matrices' own float32 values do, whatever the precision and however they are joined."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from paceline.engine.torch import kernels
from paceline.engine.torch.kernels.experts import DenseExperts, ExpertLayer, Fp8Experts, Int4Experts, experts
from paceline.engine.torch.kernels.fp4_linear.experts import Fp4Experts
from paceline.engine.torch.linear import Linear, Map
from paceline.engine.torch.matrix import Fp4, Fp8, Int4, Joined
from paceline.engine.torch.stored_matrix import keep_precision, read_matrix, stack_experts
from paceline.model import floats
from paceline.model.quantized.fp4 import Fp4Matrix
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.int4_files import CompressedRows, GptqRows
from paceline.model.quantized.matrices import StoredMatrix
from paceline.model.safetensors import StoredArray
from paceline.model.stored import StoredTensor

IN = 64
CPU = torch.device("cpu")
RNG = np.random.default_rng(7)


def normal(*shape: int) -> floats.Float32:
    return RNG.normal(size=shape).astype(np.float32)


def array(dtype: str, values: npt.NDArray[Any]) -> StoredArray:
    return StoredArray(Path("f"), "t", dtype, values)


def words(rows: int, columns: int) -> StoredArray:
    return array("I32", RNG.integers(-(2**31), 2**31, (rows, columns), np.int64).astype(np.int32))


def dense(rows: int) -> StoredTensor:
    values = floats.encode_bfloat16(normal(rows, IN))
    return StoredTensor("BF16", (rows, IN), values.view(np.uint8))


def int4(rows: int, *, group: int = 32, symmetric: bool = True, scale_dtype: str = "BF16") -> Int4Matrix:
    scales = normal(rows, IN // group) * np.float32(1 / 8)
    bits: dict[str, npt.NDArray[Any]] = {
        "BF16": floats.encode_bfloat16(scales),
        "F16": scales.astype(np.float16),
        "F32": scales,
    }
    zeros = None if symmetric else words(-(-rows // 8), IN // group)
    stored = CompressedRows(words(rows, IN // 8), array(scale_dtype, bits[scale_dtype]), zeros)
    return Int4Matrix((rows, IN), group, symmetric, scale_dtype, stored)


def gptq(rows: int, columns: npt.NDArray[np.int64]) -> Int4Matrix:
    scales = array("F16", (normal(2, rows) / 8).astype(np.float16))
    stored = GptqRows(words(IN // 8, rows), scales, words(2, rows // 8), 1)
    return Int4Matrix((rows, IN), 32, False, "F16", stored, columns)


def fp8(rows: int, block: tuple[int, int]) -> Fp8Matrix:
    codes = floats.encode_e4m3(normal(rows, IN) * np.float32(40))
    scales = np.abs(normal(-(-rows // block[0]), -(-IN // block[1]))) * np.float32(1 / 40)
    return Fp8Matrix(codes, scales, block, codes.nbytes + scales.nbytes)


def fp4(rows: int, scale_dtype: Literal["F8_E4M3", "F8_E8M0"] = "F8_E4M3") -> Fp4Matrix:
    codes = RNG.integers(0, 256, (rows, IN // 2), np.uint8)
    if scale_dtype == "F8_E8M0":
        return Fp4Matrix(codes, RNG.integers(120, 128, (rows, 2), np.uint8), scale_dtype)
    scales = floats.encode_e4m3(np.abs(normal(rows, 4)) * 100)
    return Fp4Matrix(codes, scales, scale_dtype, factor=float(RNG.uniform(0.001, 0.01)))


def values(parts: Sequence[StoredMatrix]) -> Tensor:
    return torch.from_numpy(np.concatenate([p.float32(0, p.shape[0]) for p in parts]))


def assert_multiplies(found: Map, parts: Sequence[StoredMatrix], bias: Tensor | None = None) -> None:
    x = torch.from_numpy(normal(5, IN))
    expected = torch.nn.functional.linear(x, values(parts), bias)
    torch.testing.assert_close(found(x), expected, atol=1e-4, rtol=1e-5)


ORDER = np.random.default_rng(1).permutation(IN)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([int4(24)], Int4),
        ([int4(24), int4(5), int4(8)], Int4),
        ([int4(24, symmetric=False), int4(8)], Int4),
        ([int4(24), int4(8, scale_dtype="F16"), int4(8, scale_dtype="F32")], Int4),
        ([gptq(24, ORDER), gptq(8, ORDER)], Int4),
        ([fp8(24, (16, 32))], Fp8),
        ([fp8(32, (16, 32)), fp8(8, (16, 32))], Fp8),
        ([fp8(24, (16, 32)), fp8(20, (16, 32))], Fp8),
        ([fp8(24, (24, IN)), fp8(8, (8, IN)), fp8(8, (1, IN))], Fp8),
        ([fp4(24), fp4(8)], Fp4),
        ([fp4(24, "F8_E8M0"), fp4(8, "F8_E8M0")], Fp4),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_parts_of_one_format_are_one_matrix(parts: list[StoredMatrix], kind: type[Map], biased: bool) -> None:
    bias = torch.from_numpy(normal(sum(p.shape[0] for p in parts))) if biased else None
    found = keep_precision(parts, torch.float32, CPU, bias)
    assert isinstance(found, kind) or biased
    assert_multiplies(found, parts, bias)


@pytest.mark.parametrize(
    ("parts", "maps"),
    [
        ([dense(8), int4(16), int4(8)], 2),
        ([int4(16), int4(8, group=64)], 2),
        ([gptq(8, ORDER), gptq(8, ORDER[::-1].copy()), int4(8)], 3),
        ([fp8(16, (16, 32)), fp8(16, (16, 16)), dense(8)], 3),
        ([fp4(8), fp4(8, "F8_E8M0")], 2),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_parts_of_several_formats_are_joined_by_their_results(
    parts: list[StoredMatrix], maps: int, biased: bool
) -> None:
    found = keep_precision(parts, torch.float32, CPU)
    assert isinstance(found, Joined)
    assert len(found.maps) == maps
    bias = torch.from_numpy(normal(sum(p.shape[0] for p in parts))) if biased else None
    assert_multiplies(keep_precision(parts, torch.float32, CPU, bias), parts, bias)


@pytest.mark.parametrize(
    "parts",
    [
        [dense(24)],
        [dense(24), dense(8)],
        [dense(8), int4(16), int4(8, group=64, symmetric=False)],
        [gptq(8, ORDER), gptq(8, ORDER[::-1].copy()), int4(8)],
        [fp8(16, (16, 32)), fp8(20, (16, 48)), fp8(8, (1, IN))],
        [fp4(8), fp4(8, "F8_E8M0")],
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_a_cpu_multiplies_by_one_plain_matrix(parts: list[StoredMatrix], biased: bool) -> None:
    bias = torch.from_numpy(normal(sum(p.shape[0] for p in parts))) if biased else None
    found = read_matrix(parts, torch.float32, CPU, bias)
    assert isinstance(found, Linear)
    assert_multiplies(found, parts, bias)


def test_kernels_multiply_by_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton_runs", lambda device: True)
    assert isinstance(read_matrix([int4(24), int4(8)], torch.float32, CPU), Int4)
    assert isinstance(read_matrix([dense(24), dense(8)], torch.float32, CPU), Linear)


def test_weights_keep_their_size() -> None:
    """Four bits stay four bits, scales keep their type, and zeros exist only where some matrix has them."""
    found = keep_precision([int4(24), int4(8)], torch.float32, CPU)
    assert isinstance(found, Int4)
    assert (found.packed.dtype, found.packed.shape) == (torch.int32, (32, IN // 8))
    assert (found.scales.dtype, found.zeros, found.columns) == (torch.bfloat16, None, None)
    eight = keep_precision([fp8(32, (16, 32)), fp8(8, (16, 32))], torch.float32, CPU)
    assert isinstance(eight, Fp8)
    assert (eight.weight.dtype, eight.scales.shape, eight.block) == (torch.float8_e4m3fn, (3, 2), (16, 32))
    four = keep_precision([fp4(24)], torch.float32, CPU)
    assert isinstance(four, Fp4)
    assert (four.codes.dtype, four.codes.shape, four.scales.dtype) == (
        torch.uint8,
        (24, IN // 2),
        torch.float8_e4m3fn,
    )


def test_products_are_made_in_the_type_of_the_input() -> None:
    x = torch.from_numpy(normal(3, IN)).bfloat16()
    for parts in ([int4(16)], [fp8(16, (16, 32))], [fp4(16)]):
        expected = torch.nn.functional.linear(x, values(parts).bfloat16())
        assert torch.equal(keep_precision(parts, torch.bfloat16, CPU)(x), expected)
        plain = read_matrix(parts, torch.bfloat16, CPU)(x)
        torch.testing.assert_close(plain, expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (dense, DenseExperts),
        (int4, Int4Experts),
        (lambda rows: int4(rows, symmetric=False), Int4Experts),
        (lambda rows: fp8(rows, (16, 32)), Fp8Experts),
        (lambda rows: fp8(rows, (24, 32)), Fp8Experts),
        (lambda rows: fp8(rows, (rows, IN)), Fp8Experts),
        (fp4, Fp4Experts),
    ],
)
def test_experts_are_stacked(make: Callable[[int], StoredMatrix], kind: type) -> None:
    """Every expert's matrix is its own gate above its own up, and a layer of them computes."""
    parts = [[make(32), make(32)] for _ in range(3)]
    stacked = stack_experts(parts, torch.float32, CPU)
    assert isinstance(stacked, kind)
    assert stacked.shape == (3, 64, IN)
    for expert, pair in enumerate(parts):
        found = stacked.product(torch.eye(IN), expert).T
        torch.testing.assert_close(found, values(pair), rtol=1e-6, atol=0)


def test_a_layer_of_int4_experts_computes() -> None:
    gate_up = [[int4(IN), int4(IN)] for _ in range(4)]
    down = [[int4(IN)] for _ in range(4)]
    first, second = (stack_experts(m, torch.float32, CPU) for m in (gate_up, down))
    assert isinstance(first, Int4Experts)
    assert isinstance(second, Int4Experts)
    layer = ExpertLayer(first, second)
    x = torch.from_numpy(normal(3, IN))
    ids = torch.tensor([[0, 3], [3, 1], [2, 0]])
    weights = torch.from_numpy(np.abs(normal(3, 2)))
    expected = torch.zeros_like(x)
    for row in range(3):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            gate, up = (values(gate_up[expert]) @ x[row]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[row] += weight * (values(down[expert]) @ inner)
    torch.testing.assert_close(experts(x, ids, weights, layer), expected, rtol=1e-4, atol=1e-3)

"""Weights that are refused before they are loaded."""

import re
from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.support import check_weights
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.quantized.int4 import Int4Matrix
from paceline.model.quantized.int4_files import CompressedRows
from paceline.model.safetensors import StoredArray
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

ROWS, COLUMNS = 16, 256
MODEL = Path("/models/m")
EXPERT = "layers.1.mlp.experts.{}.{}_proj.weight"


def dense(dtype: str = "BF16") -> StoredTensor:
    width = {"BF16": 2, "F32": 4}[dtype]
    return StoredTensor(dtype, (ROWS, COLUMNS), np.zeros((ROWS, width * COLUMNS), np.uint8))


def int4(group: int = 32, *, act_order: bool = False) -> Int4Matrix:
    packed = StoredArray(MODEL, "t", "I32", np.zeros((ROWS, COLUMNS // 8), np.int32))
    scales = StoredArray(MODEL, "t", "F32", np.zeros((ROWS, COLUMNS // group), np.float32))
    order = np.arange(COLUMNS)[::-1].astype(np.int64) if act_order else None
    return Int4Matrix((ROWS, COLUMNS), group, True, "F32", CompressedRows(packed, scales, None), order)


def fp8(rows: int, columns: int) -> Fp8Matrix:
    scales = np.zeros((-(-ROWS // rows), -(-COLUMNS // columns)), np.float32)
    return Fp8Matrix(np.zeros((ROWS, COLUMNS), np.uint8), scales, (rows, columns), 0)


@pytest.mark.parametrize("block", [(16, 256), (1, 256), (128, 128), (1, 128), (64, 512)])
def test_scales_of_fp8_that_a_gpu_takes(block: tuple[int, int]) -> None:
    check_weights({"layers.0.mlp.up_proj.weight": fp8(*block)}, MODEL, "cuda:0")


@pytest.mark.parametrize("block", [(1, 32), (64, 64), (128, 192)])
def test_scales_of_fp8_that_only_a_cpu_takes(block: tuple[int, int]) -> None:
    stored: dict[str, Stored] = {"layers.0.mlp.up_proj.weight": fp8(*block)}
    check_weights(stored, MODEL, "cpu")
    reason = f"/models/m: layers.0.mlp.up_proj.weight has FP8 scales for {block[1]} columns each; a GPU needs"
    with pytest.raises(InvalidRequest, match=reason):
        check_weights(stored, MODEL, "cuda")


def test_act_order_is_refused_for_experts_alone() -> None:
    check_weights({"layers.1.mlp.up_proj.weight": int4(act_order=True)}, MODEL, "cpu")
    with pytest.raises(InvalidRequest, match=r"/models/m: layers\.1\.mlp\.experts\.0\.up_proj.* act-order"):
        check_weights({EXPERT.format(0, "up"): int4(act_order=True)}, MODEL, "cpu")


@pytest.mark.parametrize(
    ("one", "other"),
    [(dense(), int4()), (int4(32), int4(64)), (fp8(16, 256), fp8(1, 256)), (int4(), fp8(1, 256))],
)
def test_experts_of_one_layer_have_one_precision(one: Stored, other: Stored) -> None:
    """Gate and up together, down by itself; layers may differ."""
    stored = {EXPERT.format(e, m): one for e in range(2) for m in ("gate", "up")}
    stored |= {EXPERT.format(e, "down"): other for e in range(2)}
    stored |= {"layers.2.mlp.experts.0.up_proj.weight": other}
    check_weights(stored, MODEL, "cpu")
    reason = f"experts.1.up_proj.weight is {other.storage} and layers.1.mlp.experts.0.gate_proj.weight {one.storage};"
    with pytest.raises(InvalidRequest, match=re.escape(reason)):
        check_weights(stored | {EXPERT.format(1, "up"): other}, MODEL, "cpu")


def test_floating_point_is_one_precision() -> None:
    check_weights({EXPERT.format(0, "up"): dense("BF16"), EXPERT.format(1, "up"): dense("F32")}, MODEL, "cpu")

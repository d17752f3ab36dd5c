"""Stored matrices of one format become tensors, one below the other, copied or decoded a block of rows at a time."""

from collections.abc import Sequence
from math import prod
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.engine.torch.kernels.blocks import row_blocks
from paceline.model.fused import TransposedTensor
from paceline.model.quantized.fp4 import Fp4Matrix
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.quantized.int4 import SYMMETRIC_ZERO, Int4Matrix
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

_SCALE_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_FP4_SCALE_TYPES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.float8_e8m0fnu}
# Values converted at a time: the float32 copy of a block stays in the cache.
_BLOCK = 1 << 18


def dense(parts: Sequence[Stored], dtype: torch.dtype) -> Tensor:
    """`dtype` [rows, ...]"""
    joined = torch.empty((_rows(parts), *parts[0].shape[1:]), dtype=dtype)
    for target, part in zip(torch.split(joined, [p.shape[0] for p in parts]), parts, strict=True):
        convert(part, target)
    return joined


def convert(stored: Stored, target: Tensor) -> None:
    """Fill `target`, on the CPU, which has the shape of `stored`."""
    rows, columns = prod(stored.shape[:-1]), stored.shape[-1]
    target = target.view(rows, columns)
    bits = stored.raw if _is_bfloat16(stored) and target.dtype == torch.bfloat16 else None
    stride = max(1, _BLOCK // columns)
    for start in range(0, rows, stride):
        stop = min(start + stride, rows)
        if bits is not None:
            np.copyto(target[start:stop].view(torch.int16).numpy(), bits(start, stop).view("<i2"))
        else:
            # Float32 files are read in place, and torch warns of memory that it may not write.
            values = np.require(stored.float32(start, stop), requirements="W")
            target[start:stop] = torch.from_numpy(values)


def _is_bfloat16(stored: Stored) -> TypeGuard[StoredTensor | TransposedTensor]:
    return isinstance(stored, StoredTensor | TransposedTensor) and stored.dtype == "BF16"


def int4(parts: Sequence[Int4Matrix]) -> tuple[Tensor, Tensor, Tensor | None]:
    """packed int32 [rows, in/8], scales [rows, groups] in their type in the file, zeros uint8 as they or None."""
    rows, columns = _rows(parts), parts[0].shape[1]
    groups = columns // parts[0].group
    packed = torch.empty(rows, columns // 8, dtype=torch.int32)
    scale_types = {p.scale_dtype for p in parts}
    scales = torch.empty(
        rows, groups, dtype=_SCALE_TYPES[scale_types.pop() if len(scale_types) == 1 else "F32"]
    )
    zeros = None
    if not all(p.symmetric for p in parts):
        zeros = torch.full((rows, groups), SYMMETRIC_ZERO, dtype=torch.uint8)
    first = 0
    for part in parts:
        for block in row_blocks(*part.shape):
            found = part.read(block.start, block.stop)
            target = slice(first + block.start, first + block.stop)
            packed.numpy()[target] = found.packed
            scales[target] = torch.from_numpy(found.scales)
            if zeros is not None and found.zeros is not None:
                zeros.numpy()[target] = found.zeros
        first += part.shape[0]
    return packed, scales, zeros


def fp8_codes(parts: Sequence[Fp8Matrix]) -> Tensor:
    """float8_e4m3fn [rows, in]"""
    return _join([p.codes for p in parts]).view(torch.float8_e4m3fn)


def fp8_scales(parts: Sequence[Fp8Matrix]) -> tuple[Tensor, tuple[int, int]]:
    """float32 scales of parts one below the other, and the block that has one scale.

    Where blocks end with each part, they stay. Otherwise every row gets scales of its own.
    """
    block = parts[0].block
    if all(p.block == block for p in parts) and not any(p.shape[0] % block[0] for p in parts[:-1]):
        return torch.from_numpy(np.concatenate([p.scales for p in parts])), block
    spread = [np.repeat(p.scales, p.block[0], axis=0)[: p.shape[0]] for p in parts]
    return torch.from_numpy(np.concatenate(spread)), (1, block[1])


def fp4(parts: Sequence[Fp4Matrix]) -> tuple[Tensor, Tensor, Tensor]:
    """codes uint8 [rows, in/2], scales float8 [rows, groups], factors float32 [rows]"""
    factors = [np.full(p.shape[0], p.factor, np.float32) for p in parts]
    scales = _join([p.scales for p in parts]).view(_FP4_SCALE_TYPES[parts[0].scale_dtype])
    return _join([p.codes for p in parts]), scales, torch.from_numpy(np.concatenate(factors))


def _join(arrays: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))


def _rows(parts: Sequence[Any]) -> int:
    return sum(part.shape[0] for part in parts)

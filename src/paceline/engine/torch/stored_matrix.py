"""Stored matrices become linear maps and stacked experts, in the precision that is multiplied fastest."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from paceline.engine.support import precision
from paceline.engine.torch import gather, kernels
from paceline.engine.torch.kernels.experts import DenseExperts, Experts, Fp8Experts, Int4Experts
from paceline.engine.torch.kernels.fp4_linear.experts import Fp4Experts
from paceline.engine.torch.linear import Linear, Map
from paceline.engine.torch.matrix import Biased, Fp4, Fp8, Int4, Joined
from paceline.model.fused import TransposedTensor
from paceline.model.quantized.fp4 import Fp4Matrix
from paceline.model.quantized.fp8 import Fp8Matrix
from paceline.model.quantized.int4 import Int4Matrix, Int64
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored


def read_matrix(
    parts: Sequence[Stored],
    dtype: torch.dtype,
    device: torch.device,
    bias: Tensor | None = None,
) -> Map:
    """The map whose results are those of `parts`, one behind the other, plus `bias` [sum of out].

    Where kernels run, quantised weights are kept as they are. Elsewhere all become `dtype`, as those in floating point
    and those of GGUF do everywhere: to expand them in every step takes longer (docs/decisions/0013). `bias` is on
    `device` already.
    """
    if not kernels.triton_runs(device) or _floating(parts):
        return Linear(gather.dense(parts, dtype).to(device), bias)
    return keep_precision(parts, dtype, device, bias)


def keep_precision(
    parts: Sequence[Stored],
    dtype: torch.dtype,
    device: torch.device,
    bias: Tensor | None = None,
) -> Map:
    """The same for quantised weights, which are kept as they are. Parts of one format make one matrix."""
    maps = [_read(run, dtype, device) for run in _runs(parts)]
    joined = maps[0] if len(maps) == 1 else Joined(tuple(maps))
    return joined if bias is None else Biased(joined, bias)


def stack_experts(
    experts: Sequence[Sequence[Stored]], dtype: torch.dtype, device: torch.device
) -> Experts | Fp4Experts:
    """One matrix for each expert, made of its parts one below the other, all experts stacked.

    All are of one precision and have their inputs in the order of the model, which `support` checks.
    """
    flat = [part for parts in experts for part in parts]

    def stacked(tensor: Tensor) -> Tensor:
        return tensor.view(len(experts), -1, *tensor.shape[1:]).to(device)

    if plain := _floating(flat):
        return DenseExperts(stacked(gather.dense(plain, dtype)))
    if int4 := _all(flat, Int4Matrix):
        packed, scales, zeros = gather.int4(int4)
        return Int4Experts(stacked(packed), stacked(scales), None if zeros is None else stacked(zeros))
    if fp8 := _all(flat, Fp8Matrix):
        per_expert = [gather.fp8_scales(_all(parts, Fp8Matrix)) for parts in experts]
        scales = torch.stack([scales for scales, _ in per_expert]).to(device)
        return Fp8Experts(stacked(gather.fp8_codes(fp8)), scales, per_expert[0][1])
    codes, scales, factors = gather.fp4(_all(flat, Fp4Matrix))
    return Fp4Experts(stacked(codes), stacked(scales), stacked(factors))


def _read(run: Sequence[Stored], dtype: torch.dtype, device: torch.device) -> Map:
    if plain := _floating(run):
        return Linear(gather.dense(plain, dtype).to(device))
    if int4 := _all(run, Int4Matrix):
        packed, scales, zeros = gather.int4(int4)
        columns = None if int4[0].columns is None else torch.from_numpy(int4[0].columns)
        return Int4(
            packed.to(device),
            scales.to(device),
            None if zeros is None else zeros.to(device),
            None if columns is None else columns.to(device),
        )
    if fp8 := _all(run, Fp8Matrix):
        scales, block = gather.fp8_scales(fp8)
        return Fp8(gather.fp8_codes(fp8).to(device), scales.to(device), block)
    return Fp4(*(tensor.to(device) for tensor in gather.fp4(_all(run, Fp4Matrix))))


def _runs(parts: Sequence[Stored]) -> Iterator[list[Stored]]:
    """`parts` cut where neighbours cannot be one matrix."""
    run = [parts[0]]
    for part in parts[1:]:
        if not _joinable(run[0], part):
            yield run
            run = []
        run.append(part)
    yield run


def _joinable(one: Stored, other: Stored) -> bool:
    """Whether rows of both can lie in one matrix."""
    if isinstance(one, Int4Matrix) and isinstance(other, Int4Matrix):
        return one.group == other.group and _same_order(one.columns, other.columns)
    return precision(one) == precision(other)


def _same_order(one: Int64 | None, other: Int64 | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _floating(parts: Sequence[Stored]) -> list[StoredTensor | TransposedTensor]:
    """`parts` when all are in floating point, else nothing."""
    found = [part for part in parts if isinstance(part, StoredTensor | TransposedTensor)]
    return found if len(found) == len(parts) else []


_Kind = TypeVar("_Kind")


def _all(parts: Sequence[object], kind: type[_Kind]) -> list[_Kind]:
    """`parts` when all are of this kind, else nothing."""
    found = [part for part in parts if isinstance(part, kind)]
    return found if len(found) == len(parts) else []

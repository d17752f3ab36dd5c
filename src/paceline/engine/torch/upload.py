"""A step's arrays on their way to the device."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]

_ALIGNMENT = 16  # bytes, for wide loads
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float64): torch.float64,
}


def upload(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """`arrays` as contiguous tensors: on a CPU of the same memory where it is so already, elsewhere by one copy of
    all, for which nothing waits."""
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    packed = torch.empty(packed_bytes(arrays), dtype=torch.uint8, pin_memory=True)
    pack(arrays, packed)
    return unpack(packed.to(device, non_blocking=True), arrays)


def packed_bytes(arrays: Sequence[Array]) -> int:
    return sum(_room(array) for array in arrays)


def pack(arrays: Sequence[Array], packed: Tensor) -> None:
    """Write `arrays` one behind the other into `packed` uint8 [packed_bytes]."""
    flat, start = packed.numpy(), 0
    for array in arrays:
        flat[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += _room(array)


def unpack(packed: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Views of `packed` that have the shapes and types of `arrays`."""
    found, start = [], 0
    for array in arrays:
        part = packed[start : start + array.nbytes].view(_TYPES[array.dtype])
        found.append(part.view(array.shape))
        start += _room(array)
    return found


def _room(array: Array) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

"""Scales beside quantized weights, whichever float type a file has for them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.model.floats import Float32, decode_bfloat16, decode_e8m0
from paceline.model.safetensors import SafetensorsDirectory, StoredArray

FLOATS = ("F32", "F16", "BF16")


def as_float32(array: StoredArray, values: npt.NDArray[Any]) -> Float32:
    """`values`, a part of those of `array`, which are floats or e8m0."""
    if array.dtype == "BF16":
        return decode_bfloat16(values)
    if array.dtype == "F8_E8M0":
        return decode_e8m0(values)
    return values.astype(np.float32)


def read_scales(array: StoredArray, shape: tuple[int, ...], *dtypes: str) -> Float32:
    """All of `array`, which must have `shape` and finite values of one of these types."""
    scales = as_float32(array, array.require(shape, *dtypes))
    if not np.isfinite(scales).all():
        raise array.refuse("holds scales that are not finite")
    return scales


def read_scalar(source: SafetensorsDirectory, name: str) -> float:
    """The one positive number that tensor `name` holds. Raises `InvalidRequest` when it holds anything else."""
    array = source.array(name)
    if array.dtype not in FLOATS or array.values.size != 1:
        raise array.refuse(f"has type {array.dtype} and shape {array.values.shape}, expected one float")
    value = float(as_float32(array, array.values.reshape(-1))[0])
    if not (np.isfinite(value) and value > 0):
        raise array.refuse(f"is {value}, expected a positive number")
    return value

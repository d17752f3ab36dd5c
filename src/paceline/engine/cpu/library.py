"""`native/abi.h` in ctypes: the same structures, field by field, and the functions.

Fields of C pointers are addresses here (`None` is null): whoever fills one keeps the array alive.
"""

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path

from paceline.contracts.errors import InvalidRequest


class PlFormat(IntEnum):
    """How a matrix lies in memory; abi.h draws each."""

    U4_F16_MIN = 0
    U4_F16 = 1
    U4_F32_MIN = 2
    U4_F32 = 3
    I8_F16 = 4
    I8_F32_MIN = 5
    I8_F32_MIN_16 = 6
    BF16 = 7
    F16 = 8
    F32 = 9


class PlKv(IntEnum):
    """What keys and values in pages are made of."""

    F32 = 0
    BF16 = 1
    E4M3 = 2
    E4M3_SCALED = 3


class PlMatrix(Structure):
    _fields_ = (
        ("rows", c_int32),
        ("columns", c_int32),
        ("format", c_int32),
        ("reserved", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class PlLayer(Structure):
    _fields_ = (
        ("q", PlMatrix),
        ("k", PlMatrix),
        ("v", PlMatrix),
        ("out", PlMatrix),
        ("gate", PlMatrix),
        ("up", PlMatrix),
        ("down", PlMatrix),
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("plane", c_int64),
    )


class PlModel(Structure):
    _fields_ = (
        ("layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("intermediate", c_int32),
        ("vocab", c_int32),
        ("rope_dim", c_int32),
        ("rope_interleaved", c_int32),
        ("kv", c_int32),
        ("eps", c_float),
        ("rope_scale", c_float),
        ("rope_frequencies", c_void_p),
        ("layer", POINTER(PlLayer)),
        ("norm", c_void_p),
        ("embedding", PlMatrix),
        ("head", PlMatrix),
    )


class PlDraw(Structure):
    _fields_ = (
        ("temperature", c_double),
        ("top_p", c_double),
        ("min_p", c_double),
        ("seed", c_uint64),
        ("top_k", c_int32),
        ("wanted", c_int32),
        ("mask", c_void_p),
    )


class PlStep(Structure):
    _fields_ = (
        ("tokens_count", c_int32),
        ("sequences", c_int32),
        ("logits_count", c_int32),
        ("table_width", c_int32),
        ("moves_count", c_int32),
        ("reserved", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("parents", c_void_p),
        ("query_starts", c_void_p),
        ("contexts", c_void_p),
        ("page_table", c_void_p),
        ("logit_rows", c_void_p),
        ("moves", c_void_p),
        ("logits", c_void_p),
        ("draws", c_void_p),
        ("drawn", c_void_p),
    )


_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "pl_open": (c_void_p, (POINTER(PlModel), c_int32)),
    "pl_bind": (None, (c_void_p, c_void_p, c_int64, c_int64)),
    "pl_step": (None, (c_void_p, POINTER(PlStep))),
    "pl_close": (None, (c_void_p,)),
}


def load(path: Path) -> ctypes.CDLL:
    """The library that `build.library` made, with the types of its functions. Calls release the GIL.

    Raises `InvalidRequest` when it cannot be loaded or lacks a function.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as e:
        raise InvalidRequest(f"{path} is no library of the cpu engine: {e}") from e
    return library

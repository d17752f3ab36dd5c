"""Matrices of 4-bit floats, NVFP4 and MXFP4: w = e2m1 * the scale of its group * a factor."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import Float32, UInt8, decode_e2m1_pairs, decode_e4m3, decode_e8m0
from paceline.model.quantized.formats import Fp4Format
from paceline.model.quantized.scales import read_scalar
from paceline.model.safetensors import SafetensorsDirectory

NVFP4_GROUP = 16
MXFP4_GROUP = 32


@dataclass(frozen=True, slots=True)
class Fp4Matrix:
    """`codes` uint8 [out, in/2], the low half first; `scales` uint8 [out, in/group], of type `scale_dtype`."""

    codes: UInt8
    scales: UInt8
    scale_dtype: Literal["F8_E4M3", "F8_E8M0"]
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        rows, octets = self.codes.shape
        return rows, 2 * octets

    @property
    def storage(self) -> str:
        """How the file holds it, in words."""
        return f"e2m1 with scales in {self.scale_dtype} and factor {self.factor}"

    @property
    def arrays(self) -> tuple[UInt8, UInt8]:
        """Views of the file."""
        return self.codes, self.scales

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.codes.nbytes + self.scales.nbytes

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, in]."""
        codes = self.codes[start:stop]
        decode = decode_e4m3 if self.scale_dtype == "F8_E4M3" else decode_e8m0
        scales = decode(self.scales[start:stop]) * np.float32(self.factor)
        values = decode_e2m1_pairs(codes).reshape(*scales.shape, -1)
        values *= scales[..., None]
        return values.reshape(len(codes), -1)


def open_fp4(source: SafetensorsDirectory, name: str, shape: tuple[int, int], found: Fp4Format) -> Fp4Matrix:
    """The matrix of module `name`. Raises `InvalidRequest` for tensors that are missing or of another shape.

    A scale of activations is not read: they keep their precision.
    """
    if found.layout == "mxfp4-blocks":
        codes, scales = _open_blocks(source, name, shape)
        return Fp4Matrix(codes, scales, "F8_E8M0")
    rows, columns = shape
    group = MXFP4_GROUP if found.layout == "mxfp4" else NVFP4_GROUP
    _require_groups(source, name, columns, group)
    weight = "weight" if found.layout == "nvfp4-modelopt" else "weight_packed"
    codes = source.array(f"{name}.{weight}").require((rows, columns // 2), "U8")
    array = source.array(f"{name}.weight_scale")
    if found.layout == "mxfp4":
        return Fp4Matrix(codes, array.require((rows, columns // group), "U8", "F8_E8M0"), "F8_E8M0")
    if found.layout == "nvfp4":
        factor = 1 / read_scalar(source, f"{name}.weight_global_scale")
    else:
        factor = read_scalar(source, f"{name}.weight_scale_2")
    return Fp4Matrix(codes, array.require((rows, columns // group), "F8_E4M3"), "F8_E4M3", factor)


def open_fp4_experts(source: SafetensorsDirectory, name: str, shape: tuple[int, int, int]) -> list[Fp4Matrix]:
    """The matrices of all experts in gpt-oss's tensors `name`_blocks and `name`_scales; `shape` is (E, out, in)."""
    codes, scales = _open_blocks(source, name, shape)
    return [Fp4Matrix(c, s, "F8_E8M0") for c, s in zip(codes, scales, strict=True)]


def _open_blocks(source: SafetensorsDirectory, name: str, shape: tuple[int, ...]) -> tuple[UInt8, UInt8]:
    *outer, columns = shape
    _require_groups(source, name, columns, MXFP4_GROUP)
    groups = columns // MXFP4_GROUP
    codes = source.array(f"{name}_blocks").require((*outer, groups, MXFP4_GROUP // 2), "U8")
    scales = source.array(f"{name}_scales").require((*outer, groups), "U8", "F8_E8M0")
    return codes.reshape(*outer, columns // 2), scales


def _require_groups(source: SafetensorsDirectory, name: str, columns: int, group: int) -> None:
    if columns % group:
        raise InvalidRequest(f"{source.path}: {name} has {columns} inputs, which are no groups of {group}")

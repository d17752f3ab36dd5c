"""Matrices of 8-bit floats: w = e4m3 * the scale of its block."""

from dataclasses import dataclass

import numpy as np

from paceline.model.floats import Float32, UInt8, decode_e4m3
from paceline.model.quantized.formats import Fp8Format
from paceline.model.quantized.scales import FLOATS, read_scalar, read_scales
from paceline.model.safetensors import SafetensorsDirectory, StoredArray

_SCALES = (*FLOATS, "F8_E8M0")


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """`codes` are e4m3, uint8 [out, in]; `scales` float32 [ceil(out / block[0]), ceil(in / block[1])].

    `block` is (out, in) when the tensor has one scale, (1, in) when each row has one, (128, 128) in DeepSeek-V3.
    """

    codes: UInt8
    scales: Float32
    block: tuple[int, int]
    nbytes: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def storage(self) -> str:
        """How the file holds it, in words."""
        return f"e4m3 in blocks of {self.block}"

    @property
    def arrays(self) -> tuple[UInt8, Float32]:
        """The values in the file."""
        return self.codes, self.scales

    def float32(self, start: int, stop: int) -> Float32:
        """Values of rows `start:stop`, float32 [rows, in]."""
        values = decode_e4m3(self.codes[start:stop])
        scales = self.scales[np.arange(start, stop) // self.block[0]]
        rows, columns = values.shape
        if columns % self.block[1]:
            values *= np.repeat(scales, self.block[1], axis=1)[:, :columns]
        else:
            blocks = values.reshape(rows, -1, self.block[1])
            blocks *= scales[..., None]
        return values


def open_fp8(source: SafetensorsDirectory, name: str, shape: tuple[int, int], found: Fp8Format) -> Fp8Matrix:
    """The matrix of module `name`. Raises `InvalidRequest` for tensors that are missing or of another shape.

    DeepSeek calls the scales `weight_scale_inv`, and multiplies by them as everybody does. A scale of activations,
    `input_scale`, must be sound but changes nothing: activations keep their precision or get scales of their own.
    """
    weight = source.array(f"{name}.weight")
    codes = weight.require(shape, "F8_E4M3")
    inverse = f"{name}.weight_scale_inv"
    array = source.array(inverse if inverse in source else f"{name}.weight_scale")
    if found.block is None:
        block, scales = _whole(array, shape)
    else:
        block = found.block
        blocks = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
        scales = read_scales(array, blocks, *_SCALES)
    if f"{name}.input_scale" in source:
        read_scalar(source, f"{name}.input_scale")
    return Fp8Matrix(codes, scales, block, codes.nbytes + array.values.nbytes)


def _whole(array: StoredArray, shape: tuple[int, int]) -> tuple[tuple[int, int], Float32]:
    """Block and scales of a matrix with one scale or one for each row, which files have with one or two dimensions."""
    rows, columns = shape
    if array.values.size == 1:
        return (rows, columns), read_scales(array, array.values.shape, *_SCALES).reshape(1, 1)
    if array.values.shape not in ((rows,), (rows, 1)):
        raise array.refuse(
            f"has shape {array.values.shape}, expected one scale or one for each of {rows} rows"
        )
    return (1, columns), read_scales(array, array.values.shape, *_SCALES).reshape(rows, 1)

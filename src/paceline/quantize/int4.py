"""INT4, symmetric, a scale for each group of a row: compressed-tensors' `pack-quantized`, as Kimi K2 is published.

    weight_packed  int32 [out, in / 8]      value + 8 of element i in bits 4 * (i % 8) of word i // 8
    weight_scale   bfloat16 [out, in / group]
    weight_shape   int64 [2]                out, in

w = value * scale, value in -8..7.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.model.floats import decode_bfloat16, encode_bfloat16
from paceline.model.quantized.nibbles import pack
from paceline.quantize.format import Encoded, Float32, Part, largest
from paceline.quantize.tensors import OutputTensor

# The largest magnitude of a group divided by these is where the search for its scale begins. Seven holds all values and
# eight all but the largest positive one; beyond that the tails are clipped, which pays when few values lie there. On
# Gaussian weights in groups of 32 (128) the relative error is 0.0863 (0.1014); 7 alone gives 0.0970 (0.1176), and twice
# as many candidates 0.0862 (0.1013).
_DIVISORS = (7.0, 7.5, 8.0, 8.5, 9.0)
_SMALLEST = np.float32(2**-100)


@dataclass(frozen=True, slots=True)
class Int4Format:
    """`group` columns of a row share a scale."""

    group: int

    @property
    def block_rows(self) -> int:
        return 1

    def obstacle(self, shape: tuple[int, int]) -> str | None:
        return f"its {shape[1]} columns are no multiple of {self.group}" if shape[1] % self.group else None

    def parts(self, module: str, shape: tuple[int, int]) -> tuple[Part, ...]:
        rows, columns = shape
        return (
            Part(OutputTensor(f"{module}.weight_packed", "I32", (rows, columns // 8))),
            Part(OutputTensor(f"{module}.weight_scale", "BF16", (rows, columns // self.group))),
        )

    def constants(self, module: str, shape: tuple[int, int]) -> tuple[tuple[OutputTensor, bytes], ...]:
        return ((OutputTensor(f"{module}.weight_shape", "I64", (2,)), np.array(shape, "<i8").tobytes()),)

    def encode(self, values: Float32) -> Encoded:
        rows = len(values)
        groups = values.reshape(rows, -1, self.group)
        scales = search_scales(groups)
        codes = _round(groups, np.float32(1) / scales)
        words = pack((codes + 8).astype(np.uint8).reshape(rows, -1))
        codes *= scales
        bits = encode_bfloat16(scales).astype("<u2").reshape(rows, -1)
        stored = (words.view(np.uint8), bits.view(np.uint8))
        return Encoded(stored, codes.reshape(values.shape))

    def config(self, kept: list[str]) -> dict[str, Any]:
        weights = {
            "num_bits": 4,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": self.group,
            "dynamic": False,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": kept,
        }


def search_scales(groups: Float32) -> Float32:
    """Scales of little squared error: [..., group] -> [..., 1], positive, exact in bfloat16.

    For each candidate the values are rounded with it. The scale that fits the codes q best, by least squares, is
    <x, q> / <q, q>; rounded to bfloat16 it takes scale * (2 <x, q> - scale <q, q>) off the squared error. The candidate
    that takes off most is chosen. Raises `Damaged`.
    """
    inverse: Float32 = np.reciprocal(np.maximum(largest(groups, (-1,)), _SMALLEST))
    scales, best = np.zeros_like(inverse), np.zeros(inverse.shape)
    for divisor in _DIVISORS:
        codes = _round(groups, np.float32(divisor) * inverse)
        product = np.einsum("...i,...i->...", groups, codes)[..., None]
        # Codes that are all zero have no length; their group keeps the scale zero.
        length = np.maximum(np.einsum("...i,...i->...", codes, codes)[..., None], 1)
        fitted = decode_bfloat16(encode_bfloat16(product / length))
        # In float64: candidates that differ in the rounding of the scale alone would seem alike.
        gain = fitted * (2 * product.astype(np.float64) - fitted * length.astype(np.float64))
        better = gain > best
        scales = np.where(better, fitted, scales)
        best = np.where(better, gain, best)
    # Groups that are zero, or nearly so, store zeros under any scale.
    return np.where(scales > _SMALLEST, scales, np.float32(1))


def _round(groups: Float32, inverse: Float32) -> Float32:
    """Codes from -8 to 7, as float32; ties go to the even one."""
    codes = groups * inverse
    np.rint(codes, out=codes)
    return np.clip(codes, -8, 7, out=codes)

"""The packings of 4-bit integers in files: compressed-tensors, GPTQ and AWQ."""

from dataclasses import dataclass

import numpy as np

from paceline.contracts.errors import InvalidRequest
from paceline.model.floats import UInt8
from paceline.model.quantized.formats import Int4Format
from paceline.model.quantized.int4 import SYMMETRIC_ZERO, Arrays, Int4Block, Int4Matrix, Int64, sort_columns
from paceline.model.quantized.nibbles import Int32, transpose, unpack
from paceline.model.quantized.scales import FLOATS, as_float32
from paceline.model.safetensors import SafetensorsDirectory, StoredArray

# AutoAWQ's order within a word: nibble i holds output _AWQ_ORDER[i] of eight.
_AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
_AWQ_NIBBLES = np.argsort(_AWQ_ORDER)


@dataclass(frozen=True, slots=True)
class CompressedRows:
    """weight_packed int32 [out, in/8], weight_scale [out, groups], weight_zero_point int32 [out/8, groups] or None."""

    packed: StoredArray
    scales: StoredArray
    zeros: StoredArray | None

    @property
    def arrays(self) -> Arrays:
        return _arrays(self.packed, self.scales, self.zeros)

    def read(self, start: int, stop: int) -> Int4Block:
        zeros = None if self.zeros is None else _packed_outputs(self.zeros.values.T, start, stop)
        scales = as_float32(self.scales, self.scales.values[start:stop])
        return Int4Block(self.packed.values[start:stop], scales, zeros)


@dataclass(frozen=True, slots=True)
class GptqRows:
    """qweight int32 [in/8, out], scales [groups, out], qzeros int32 [groups, out/8] or None; zeros are less `bias`."""

    packed: StoredArray
    scales: StoredArray
    zeros: StoredArray | None
    bias: int

    @property
    def arrays(self) -> Arrays:
        return _arrays(self.packed, self.scales, self.zeros)

    def read(self, start: int, stop: int) -> Int4Block:
        zeros = None
        if self.zeros is not None:
            # A zero point of 0 was stored as -1, of which four bits are left.
            zeros = (_packed_outputs(self.zeros.values, start, stop) + np.uint8(self.bias)) & np.uint8(15)
        scales = as_float32(self.scales, self.scales.values[:, start:stop].T)
        return Int4Block(np.ascontiguousarray(self.packed.values[:, start:stop].T), scales, zeros)


@dataclass(frozen=True, slots=True)
class AwqRows:
    """qweight int32 [in, out/8], scales [groups, out], qzeros int32 [groups, out/8] or None."""

    packed: StoredArray
    scales: StoredArray
    zeros: StoredArray | None

    @property
    def arrays(self) -> Arrays:
        return _arrays(self.packed, self.scales, self.zeros)

    def read(self, start: int, stop: int) -> Int4Block:
        zeros = None if self.zeros is None else _awq_zeros(self.zeros.values, start, stop)
        scales = as_float32(self.scales, self.scales.values[:, start:stop].T)
        return Int4Block(self._packed(start, stop), scales, zeros)

    def _packed(self, start: int, stop: int) -> Int32:
        """int32 [rows, in/8]: words of eight outputs become words of eight inputs."""
        first = start // 8
        words = self.packed.values[:, first : -(-stop // 8)]
        by_input = words.reshape(-1, 8, words.shape[1]).swapaxes(0, 1)
        by_output = transpose(by_input)[_AWQ_NIBBLES]
        rows = by_output.transpose(2, 0, 1).reshape(8 * words.shape[1], -1)
        return rows[start - 8 * first : stop - 8 * first]


def open_int4(
    source: SafetensorsDirectory, name: str, shape: tuple[int, int], found: Int4Format
) -> Int4Matrix:
    """The matrix of module `name`. Raises `InvalidRequest` for tensors that are missing or of another shape."""
    rows, columns = shape
    group = found.group or columns
    if columns % group or group % 8 or (rows % 8 and found.layout != "compressed-tensors"):
        raise InvalidRequest(
            f"{source.path}: {name} of shape {shape} is not divisible into groups of {group} int4"
        )
    if found.layout == "compressed-tensors":
        return _open_compressed(source, name, shape, group, found)
    return _open_transposed(source, name, shape, group, found)


def _open_compressed(
    source: SafetensorsDirectory, name: str, shape: tuple[int, int], group: int, found: Int4Format
) -> Int4Matrix:
    rows, columns = shape
    packed, scales = source.array(f"{name}.weight_packed"), source.array(f"{name}.weight_scale")
    packed.require((rows, columns // 8), "I32")
    scales.require((rows, columns // group), *FLOATS)
    stated = source.array(f"{name}.weight_shape")
    if stated.require((2,), "I64", "I32").tolist() != [rows, columns]:
        raise stated.refuse(f"says {stated.values.tolist()}, expected {[rows, columns]}")
    zeros = None
    if not found.symmetric:
        zeros = source.array(f"{name}.weight_zero_point")
        zeros.require((-(-rows // 8), columns // group), "I32")
    order = _input_order(source, f"{name}.weight_g_idx", columns, group)
    return Int4Matrix(shape, group, zeros is None, scales.dtype, CompressedRows(packed, scales, zeros), order)


def _open_transposed(
    source: SafetensorsDirectory, name: str, shape: tuple[int, int], group: int, found: Int4Format
) -> Int4Matrix:
    rows, columns = shape
    packed, scales = source.array(f"{name}.qweight"), source.array(f"{name}.scales")
    packed.require((columns, rows // 8) if found.layout == "awq" else (columns // 8, rows), "I32")
    scales.require((columns // group, rows), *FLOATS)
    bias = 1 if found.layout == "gptq" else 0
    zeros = None
    if not found.symmetric or f"{name}.qzeros" in source:
        zeros = source.array(f"{name}.qzeros")
        zeros.require((columns // group, rows // 8), "I32")
        # Symmetric matrices have zeros too, all of them 8, which the kernels need not read.
        if (zeros.values.view(np.uint32) == (SYMMETRIC_ZERO - bias) * 0x11111111).all():
            zeros = None
    if found.layout == "awq":
        return Int4Matrix(shape, group, zeros is None, scales.dtype, AwqRows(packed, scales, zeros))
    order = _input_order(source, f"{name}.g_idx", columns, group)
    return Int4Matrix(shape, group, zeros is None, scales.dtype, GptqRows(packed, scales, zeros, bias), order)


def _input_order(source: SafetensorsDirectory, name: str, columns: int, group: int) -> Int64 | None:
    """The order of inputs that the groups in tensor `name` make; it is absent where groups are contiguous."""
    if name not in source:
        return None
    groups = source.array(name)
    try:
        return sort_columns(groups.require((columns,), "I32"), group)
    except ValueError as e:
        raise groups.refuse(str(e)) from e


def _packed_outputs(words: Int32, start: int, stop: int) -> UInt8:
    """Codes of outputs `start:stop` from int32 [n, out/8], uint8 [outputs, n]"""
    first = start // 8
    codes = unpack(words[:, first : -(-stop // 8)])
    return np.ascontiguousarray(codes[:, start - 8 * first : stop - 8 * first].T)


def _awq_zeros(words: Int32, start: int, stop: int) -> UInt8:
    """As `_packed_outputs`, for words in AWQ's order."""
    first = start // 8
    codes = unpack(words[:, first : -(-stop // 8)])
    ordered = codes.reshape(len(codes), -1, 8)[..., _AWQ_NIBBLES].reshape(len(codes), -1)
    return np.ascontiguousarray(ordered[:, start - 8 * first : stop - 8 * first].T)


def _arrays(*arrays: StoredArray | None) -> Arrays:
    return tuple(a.values for a in arrays if a is not None)

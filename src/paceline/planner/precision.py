"""How many bytes a matrix takes in each precision that checkpoints are stored in."""

from dataclasses import dataclass

from paceline.contracts.errors import InvalidRequest
from paceline.model.quantized.formats import Format, Fp8Format, Int4Format
from paceline.model.quantized.fp4 import MXFP4_GROUP, NVFP4_GROUP

_WHOLE = 2**31
"""A block that is never smaller than the matrix."""


@dataclass(frozen=True, slots=True)
class Precision:
    """`bits` per value, and for each block of `rows` by `columns` values `scale_bits` of scale and zero point."""

    name: str
    bits: int
    scale_bits: int = 0
    rows: int = 1
    columns: int = 1

    def bytes(self, rows: int, columns: int) -> int:
        """Of a matrix [rows, columns]; blocks at its edges may be cut."""
        blocks = -(-rows // self.rows) * -(-columns // self.columns) if self.scale_bits else 0
        return (rows * columns * self.bits + blocks * self.scale_bits + 7) // 8


FP32 = Precision("FP32", 32)
BF16 = Precision("BF16", 16)


def int4(group: int | None, zero_bits: int = 0) -> Precision:
    """Groups of inputs that share a 16-bit scale; None: all inputs of an output share one."""
    if group is not None and group < 1:
        raise InvalidRequest(f"a group of {group} weights cannot share a scale")
    return Precision(
        "INT4" if group is None else f"INT4, group {group}", 4, 16 + zero_bits, 1, group or _WHOLE
    )


def of_format(stored: Format) -> Precision:
    """What a matrix in the format `stored` takes, without the few bytes that it has per tensor."""
    if isinstance(stored, Int4Format):
        return int4(stored.group, 0 if stored.symmetric else 4)
    if isinstance(stored, Fp8Format):
        rows, columns = stored.block or (1, _WHOLE)
        return Precision(f"FP8, block {rows}x{columns}" if stored.block else "FP8", 8, 32, rows, columns)
    if stored.layout.startswith("nvfp4"):
        return Precision("NVFP4", 4, 8, 1, NVFP4_GROUP)
    return Precision("MXFP4", 4, 8, 1, MXFP4_GROUP)


FP8 = of_format(Fp8Format((128, 128)))

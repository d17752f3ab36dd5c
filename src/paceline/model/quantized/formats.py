"""How a checkpoint stores the matrices of its quantized modules: under which names, in which precision."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Int4Format:
    """4-bit integers in groups of `group` inputs that share a scale; None: all inputs of an output share one.

    `layout` is the packing of compressed-tensors, of GPTQ, whose first version stores zero points less one, or of AWQ.
    """

    layout: Literal["compressed-tensors", "gptq", "gptq_v2", "awq"]
    group: int | None
    symmetric: bool


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """e4m3 with a scale for each `block` of rows and columns; None: one per tensor or per row, as its shape says."""

    block: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Fp4Format:
    """e2m1 in groups that share a scale: of 16 in NVFP4, of 32 in MXFP4.

    nvfp4             weight_packed, weight_scale in e4m3, weight_global_scale to divide by     (compressed-tensors)
    nvfp4-modelopt    weight, weight_scale in e4m3, weight_scale_2 to multiply by               (NVIDIA Model Optimizer)
    mxfp4             weight_packed, weight_scale in e8m0                                       (compressed-tensors)
    mxfp4-blocks      *_blocks, *_scales in e8m0, for all experts at once                       (gpt-oss)
    """

    layout: Literal["nvfp4", "nvfp4-modelopt", "mxfp4", "mxfp4-blocks"]


Format: TypeAlias = Int4Format | Fp8Format | Fp4Format

"""FP8 e4m3, in the two forms that checkpoints are published in; w = weight * scale in both.

    DeepSeek V3             weight e4m3 [out, in]   weight_scale_inv float32 [ceil(out / 128), ceil(in / 128)]
    compressed-tensors      weight e4m3 [out, in]   weight_scale bfloat16 [out, 1]          (`float-quantized`)

A scale maps the largest magnitude of its block or row onto 448, the largest e4m3 value. Activations are quantized when
the model runs, by token (and by 128 columns in the first form), which needs nothing in the checkpoint.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.model.floats import E4M3_MAX, decode_bfloat16, decode_e4m3, encode_bfloat16, encode_e4m3
from paceline.quantize.format import Encoded, Float32, Part, largest
from paceline.quantize.tensors import OutputTensor

_BLOCK = 128
_SMALLEST = np.float32(2**-100)


@dataclass(frozen=True, slots=True)
class Fp8BlockFormat:
    """A scale for every 128 x 128 values; the last block of a row or column may be smaller."""

    @property
    def block_rows(self) -> int:
        return _BLOCK

    def obstacle(self, shape: tuple[int, int]) -> str | None:
        return None

    def parts(self, module: str, shape: tuple[int, int]) -> tuple[Part, ...]:
        scales = (-(-shape[0] // _BLOCK), -(-shape[1] // _BLOCK))
        return (
            Part(OutputTensor(f"{module}.weight", "F8_E4M3", shape)),
            Part(OutputTensor(f"{module}.weight_scale_inv", "F32", scales), rows=_BLOCK),
        )

    def constants(self, module: str, shape: tuple[int, int]) -> tuple[tuple[OutputTensor, bytes], ...]:
        return ()

    def encode(self, values: Float32) -> Encoded:
        rows, columns = values.shape
        padded = np.pad(values, ((0, -rows % _BLOCK), (0, -columns % _BLOCK)))
        blocks = padded.reshape(len(padded) // _BLOCK, _BLOCK, -1, _BLOCK)
        scales = _scales(largest(blocks, (1, 3)))
        codes = encode_e4m3(blocks / scales)
        decoded = decode_e4m3(codes)
        decoded *= scales
        stored = codes.reshape(padded.shape)[:rows, :columns]
        scale_rows = scales.astype("<f4").reshape(len(blocks), -1).view(np.uint8)
        return Encoded(
            (np.ascontiguousarray(stored), scale_rows), decoded.reshape(padded.shape)[:rows, :columns]
        )

    def config(self, kept: list[str]) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [_BLOCK, _BLOCK],
            "modules_to_not_convert": kept,
        }


@dataclass(frozen=True, slots=True)
class Fp8ChannelFormat:
    """A scale for every row."""

    @property
    def block_rows(self) -> int:
        return 1

    def obstacle(self, shape: tuple[int, int]) -> str | None:
        return None

    def parts(self, module: str, shape: tuple[int, int]) -> tuple[Part, ...]:
        return (
            Part(OutputTensor(f"{module}.weight", "F8_E4M3", shape)),
            Part(OutputTensor(f"{module}.weight_scale", "BF16", (shape[0], 1))),
        )

    def constants(self, module: str, shape: tuple[int, int]) -> tuple[tuple[OutputTensor, bytes], ...]:
        return ()

    def encode(self, values: Float32) -> Encoded:
        bits = encode_bfloat16(_scales(largest(values, (1,))))
        scales = decode_bfloat16(bits)
        codes = encode_e4m3(values / scales)
        decoded = decode_e4m3(codes)
        decoded *= scales
        return Encoded((codes, bits.astype("<u2").view(np.uint8)), decoded)

    def config(self, kept: list[str]) -> dict[str, Any]:
        eight = {"num_bits": 8, "type": "float", "symmetric": True}
        return {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**eight, "strategy": "channel", "dynamic": False},
                    "input_activations": {**eight, "strategy": "token", "dynamic": True},
                }
            },
            "ignore": kept,
        }


def _scales(magnitude: Float32) -> Float32:
    return np.where(magnitude > _SMALLEST, magnitude / np.float32(E4M3_MAX), np.float32(1))

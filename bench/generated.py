"""Models of any shape without files: tensors are windows on one block of noise, whatever size they have."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from paceline.engine.interface import Progress
from paceline.engine.torch.decoder import Decoder
from paceline.engine.torch.engine import TorchEngine
from paceline.model.files import ModelFiles
from paceline.model.floats import encode_bfloat16
from paceline.model.parts import Part, parts
from paceline.model.quantized.int4 import Int4Block, Int4Matrix
from paceline.model.stored import StoredTensor
from paceline.model.weights import Stored

Noise = npt.NDArray[Any]

_COUNT = 1 << 23
_GROUP = 32
# The standard deviation with which models are initialised.
_VALUES = encode_bfloat16(np.random.default_rng(0).normal(0.0, 0.02, _COUNT).astype(np.float32))
_WORDS = np.random.default_rng(1).integers(-(2**31), 2**31, _COUNT, dtype=np.int32)


@dataclass(frozen=True)
class NoiseRows:
    """4-bit integers of a matrix."""

    packed: Noise
    groups: int

    @property
    def arrays(self) -> tuple[Noise, ...]:
        return (self.packed,)

    def read(self, start: int, stop: int) -> Int4Block:
        # 16 levels, uniformly: their standard deviation is 4.6.
        scales = np.full((stop - start, self.groups), 0.02 / 4.6, dtype=np.float32)
        return Int4Block(self.packed[start:stop], scales, None)


class GeneratedEngine(TorchEngine):
    """The torch engine with random weights: experts in INT4 as Kimi's, everything else in bfloat16."""

    def __init__(self, config: Mapping[str, Any], directory: Path, **options: Any) -> None:
        """`config` is a Hugging Face configuration; `directory` holds nothing else."""
        (directory / "config.json").write_text(json.dumps(config))
        super().__init__(ModelFiles("generated", "hf", directory), **options)

    @cached_property
    def fingerprint(self) -> bytes:
        return bytes(32)

    def load(self, progress: Progress) -> None:
        self._build({part.name: _stored(part) for part in parts(self._config)}, progress)

    def _scales_of(self, model: Decoder) -> tuple[float, ...]:
        return self._calibrate(model)


def _stored(part: Part) -> Stored:
    if len(part.shape) == 2 and part.matrix and ".experts." in part.name:
        rows, columns = part.shape
        packed = NoiseRows(_window(_WORDS, rows, columns // 8, part.name), columns // _GROUP)
        return Int4Matrix((rows, columns), _GROUP, symmetric=True, scale_dtype="BF16", rows=packed)
    rows, columns = (1, *part.shape)[-2:]
    values = _window(_VALUES, rows, columns, part.name)
    if "norm" in part.name:
        values = encode_bfloat16(np.ones((rows, columns), dtype=np.float32))
    return StoredTensor("BF16", part.shape, values.view(np.uint8))


def _window(noise: Noise, rows: int, columns: int, name: str) -> Noise:
    """[rows, columns] of `noise`: each row begins a little further on, and each name elsewhere."""
    start = zlib.crc32(name.encode()) % 4096
    step = max(1, (len(noise) - start - columns) // rows)
    assert start + step * (rows - 1) + columns <= len(noise)
    window: Noise = as_strided(
        noise[start:], (rows, columns), (step * noise.itemsize, noise.itemsize), writeable=False
    )
    return window
